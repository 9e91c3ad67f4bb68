"""Check and measure on a GPU what the project does there: one command for the first ten minutes with a card.

  --parts checks   every place of docs/gpu.md, passed or failed, with what was seen
  --parts speed    the card's ceilings; encoding, training and search as shares of them
  --parts train    Tables 4, 5, 7 and 8 from multilingual-e5-small with the official batch sizes; goes on where it stopped

Every step runs in a process of its own, for so many seconds; one that fails does not end the others. After each step the
results are in OUT/results.json and, as tables, in OUT/results.md. The models and data are those of --pack
(benchmarks/gpu_pack.py); --small makes tiny ones, for tests without a card.

Example:

  make gpu PARTS="checks speed"
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import platform
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("build/gpu")
SITE = ROOT / WORK / "site"
Rows = list[dict[str, Any]]  # of a step's table


def install_wheels(pack: Path) -> None:
    """Make the packages that travel with the pack importable, here and in the processes that are started."""
    if all(importlib.util.find_spec(name) for name in ("datasets", "ir_measures", "msgspec")):
        return  # an environment of the project
    if not SITE.is_dir():
        names = [path.name.split("-")[0] for path in (pack / "wheels").glob("*.whl")]
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--find-links", str(pack / "wheels")]
        words = [sys.executable, "-m", "pip", "install", *options, "--target", str(SITE), *names]
        subprocess.run(words, check=True)
    sys.path.insert(0, str(SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])


@dataclass(frozen=True)
class Setting:
    """What the steps work with.

    Attributes:
        device: cuda:0, or cpu.
        small: tiny models and data.
        model: the folder of a pretrained dual-encoder.
        release: a release with main, cmedqa and ccovid.
        settings: values for the recipes of `reproduce`.
        seconds: what is left to the step that runs.
    """

    device: str
    small: bool
    model: Path
    release: Path
    settings: Path
    seconds: float

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def of(self, large: int, small: int) -> int:
        return small if self.small else large


# --- what the steps share ---


class Kept(list[dict[str, Any]]):
    """Rows that are also in a file as they come: what a step has when its time is over."""

    file: Path | None = None

    def append(self, row: dict[str, Any]) -> None:
        super().append(row)
        if self.file is not None:
            self.file.write_text(json.dumps(self), encoding="utf-8")


def synchronize(setting: Setting) -> None:
    import torch

    if setting.cuda:
        torch.cuda.synchronize()


def timed(setting: Setting, function: Callable[[], Any], repeats: int = 3, warm: int = 1) -> tuple[float, Any]:
    """(median seconds, the last result) of a function whose work a GPU may do after it returns."""
    times, result = [], None
    for number in range(warm + repeats):
        synchronize(setting)
        begin = time.perf_counter()
        result = function()
        synchronize(setting)
        if number >= warm:
            times.append(time.perf_counter() - begin)
    return statistics.median(times), result


def command(program: str, *words: object) -> int:
    """The exit code of a command of the project, run in this process."""
    from builders.common.command import main

    module = importlib.import_module(f"{program}.__main__")
    return main(program, "", module.VERBS, [str(word) for word in words])


def unit_vectors(seed: int, rows: int, width: int, device: str = "cpu") -> Any:
    """Random vectors of length 1 in 16 bits, shape (rows, width)."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn(rows, width, generator=generator, device=device)
    return torch.nn.functional.normalize(values, dim=1).half().cpu().numpy()


def write_vectors(folder: Path, rows: int, width: int, device: str) -> Any:
    """Embeddings on disk, as `encode` leaves them."""
    import numpy as np

    from baselines.vectors.embeddings import Vectors, longest

    chunks = []
    for start in range(0, rows, 1 << 17):
        part = unit_vectors(start + 1, min(1 << 17, rows - start), width, device)
        np.save(folder / f"{start:09d}.npy", part)
        chunks.append({"path": f"{start:09d}.npy", "rows": len(part), "longest": longest(part)})
    return Vectors(folder, {"dim": width, "shards": chunks})


def bert(folder: Path, setting: Setting, labels: int | None = None) -> Path:
    """A BERT of base size with random weights, whose words are Chinese characters; a tiny one where small."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(0x4E00, 0x4E00 + 17_995))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), **(sizes if setting.small else {}), **({"num_labels": labels} if labels else {})
    )
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.save_pretrained(folder)
    return folder


def characters(count: int, length: int, seed: int = 0) -> list[str]:
    """Made-up texts of so many characters, each a token of :func:`bert`."""
    import numpy as np

    numbers = np.random.default_rng(seed).integers(0x4E00, 0x4E00 + 17_995, (count, length))
    return ["".join(map(chr, row)) for row in numbers.tolist()]


def forward_operations(model: Any, lengths: list[int]) -> float:
    """Floating-point operations of one pass over texts of these many tokens: linear layers, and attention's two products.

    For a BERT of base size: 12 x (24 x 768^2 + 4 x 768 x length) a token, 84.5 GFLOP for a text of 380 tokens... a
    layer's attention adds a twentieth.
    """
    import torch

    from transformers import PreTrainedModel

    transformer = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    linear = sum(
        module.weight.numel()
        for name, module in transformer.named_modules()
        if isinstance(module, torch.nn.Linear) and "pooler" not in name and "classifier" not in name
    )
    config = transformer.config
    attention = 4 * config.num_hidden_layers * config.hidden_size
    return float(sum(2 * linear * length + attention * length * length for length in lengths))


def memory_formula(layers: int, width: int, tokens: int, bytes_a_number: int, weights: int) -> float:
    """Bytes of a training step: weights, gradients and Adam's two moments in fp32, and what the backward pass needs.

    A token keeps some 34 numbers times the width in a layer (inputs of the linear layers and layer norms, queries, keys
    and values, both sides of the GELU, masks of the dropouts), as Korthikanti et al. 2022 count them in bytes at 16
    bits; attention's scores are not kept.
    """
    return 16.0 * weights + layers * width * tokens * 17 * bytes_a_number


def peak_memory(setting: Setting) -> int:
    import torch

    return torch.cuda.max_memory_allocated() if setting.cuda else 0


def cosines(one: Any, other: Any) -> Any:
    """The cosine of each row of one with the row of the other."""
    import numpy as np

    wide = [np.asarray(each, np.float64) for each in (one, other)]
    lengths = [np.linalg.norm(each, axis=1) for each in wide]
    return (wide[0] * wide[1]).sum(1) / (lengths[0] * lengths[1])


def passages_of(setting: Setting, count: int) -> list[str]:
    from builders.store.reader import open_release

    if setting.small:
        from releases import TEXTS

        return [f"{TEXTS[number % len(TEXTS)]}{number}" for number in range(count)]
    found: list[str] = []
    for batch in open_release(setting.release).batches("corpus", "corpus", ["text"], rows=1024):
        found += batch.column("text").to_pylist()
        if len(found) >= count:
            break
    return found[:count]


# --- checks ---


def check(name: str, passed: bool, seen: str) -> dict[str, Any]:
    return {"check": name, "passed": passed, "seen": seen}


def check_devices(setting: Setting) -> Rows:
    import torch

    from baselines.models.devices import computes_bf16, devices_of, dtype_of

    found = devices_of(None)
    seen = f"{found}, auto is {dtype_of('auto', found[0])}, computes bf16: {computes_bf16(setting.device)}"
    rows = [check("devices", (found[0] != "cpu") == setting.cuda, seen)]
    if setting.cuda:
        rows[0]["seen"] += f", {torch.cuda.get_device_name()}, capability {torch.cuda.get_device_capability()}"
    return rows


def check_pinned(setting: Setting) -> Rows:
    import torch
    from sentence_transformers import SentenceTransformer

    from baselines.models.ahead import Ahead

    model = SentenceTransformer(str(setting.model), device="cpu")
    texts = [passages_of(setting, 64)[start : start + 16] for start in range(0, 64, 16)]
    plain = [model.preprocess(some) for some in texts]
    rows = []
    for processes in (0, 2):
        found = list(Ahead(model, {}, processes, pin=setting.cuda)(texts))
        same = all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(plain, found, strict=True))
        pinned = all(each["input_ids"].is_pinned() for each in found) if setting.cuda else False
        name = f"tokens ahead, {processes} processes"
        rows.append(check(name, same and pinned == setting.cuda, f"same tokens: {same}, pinned: {pinned}"))
    return rows


def check_precision(setting: Setting) -> Rows:
    """fp32, fp16 and bf16 on the device against fp32 on the CPU: cosines, and MRR@10 among the same passages."""
    import numpy as np

    from baselines.models.encoder import Encoder
    from baselines.models.loading import open_dual
    from builders.store.reader import open_release

    release, count = open_release(setting.release), setting.of(1_500, 40)
    qrels = release.table("qrels", "dev", ["query-id", "corpus-id"]).to_pydict()
    positive = dict(zip(qrels["query-id"], qrels["corpus-id"], strict=True))
    asked = list(positive)[: setting.of(300, 2)]
    wanted = release.texts("corpus", "corpus", {positive[query] for query in asked})
    others = {text: None for text in passages_of(setting, count) if text not in wanted.values()}
    texts = [*wanted.values(), *others][:count]
    ids = [*wanted, *(f"other {n}" for n in range(len(texts)))]
    queries = release.texts("queries", "dev", asked)

    def vectors(device: str, dtype: str) -> tuple[Any, Any]:
        model = open_dual(str(setting.model), device, dtype, setting.of(512, 64))
        return Encoder(model, "query").encode([queries[q] for q in asked]), Encoder(model, "document").encode(texts)

    def mrr(found: tuple[Any, Any]) -> float:
        scores = found[0].astype(np.float32) @ found[1].astype(np.float32).T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        ranks = [
            [ids[row] for row in own].index(positive[q]) + 1 if positive[q] in [ids[row] for row in own] else 0
            for q, own in zip(asked, best.tolist(), strict=True)
        ]
        return 100 * statistics.mean(1 / rank if rank else 0.0 for rank in ranks)

    reference = vectors("cpu", "fp32")
    rows = Kept()
    for dtype, least in (("fp32", 0.99999), ("fp16", 0.9999), ("bf16", 0.999)):
        found = vectors(setting.device, dtype)
        near = cosines(found[1], reference[1])
        change = mrr(found) - mrr(reference)
        seen = f"cosine with the CPU's: lowest {near.min():.6f}, mean {near.mean():.6f}; MRR@10 {mrr(found):.2f} ({change:+.2f})"
        rows.append(check(f"encode in {dtype}", bool(near.min() > least) and abs(change) < 1, seen))
    return rows


def check_search(setting: Setting) -> Rows:
    """The device's candidates and the whole search, against products in 64 bits."""
    import numpy as np

    from baselines.vectors import scan
    from baselines.vectors.engines import TorchEngine

    rows, width, queries = (
        setting.of(100_000, 3_000),
        setting.of(768, 64),
        unit_vectors(9, setting.of(200, 20), setting.of(768, 64)),
    )
    with tempfile.TemporaryDirectory() as name:
        vectors = write_vectors(Path(name), rows, width, setting.device)
        exact = queries.astype(np.float64) @ vectors.all().astype(np.float64).T
        engine = TorchEngine(queries, 100, setting.device)
        loose, found = scan.candidates(vectors, [engine], 100)
        error = float(np.abs(loose - np.take_along_axis(exact, found, 1)).max())
        slack = width * 2.0**-22 * vectors.longest
        hits = list(
            scan.search(vectors, queries, [TorchEngine(queries, 100, setting.device)], 50, 100, lambda: np.arange(rows))
        )
    best = np.argsort(-exact, axis=1, kind="stable")[:, :50]
    same = all(set(own.tolist()) == set(some.tolist()) for own, (some, _) in zip(best, hits, strict=True))
    seen = f"top 50 of {rows:,} as in 64 bits: {same}; candidates' scores off by {error:.1e} at most (allowed: {slack:.1e})"
    return [check("TorchEngine", same and error < slack, seen)]


def check_kinds(setting: Setting) -> Rows:
    """Late interaction and a sparse encoder on the device, against the same on the CPU in fp32."""
    from releases import QUESTIONS, TEXTS, make_release, tables
    from tiny_kinds import write_multi_vector, write_sparse

    from baselines.kinds import Work, open_retriever
    from baselines.models.settings import ModelSettings
    from builders.store.reader import open_release

    rows = Kept()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release = open_release(make_release(folder / "release", tables(TEXTS)))
        questions = [question for some in QUESTIONS.values() for question in some]
        for kind, write in (("multi-vector", write_multi_vector), ("sparse", write_sparse)):
            model = write(folder / kind)
            found = {}
            for device in ("cpu", setting.device):
                retriever = open_retriever(ModelSettings(str(model)), Work([device], "fp32"), kind)
                retriever.index(release, "corpus", folder / f"{kind}-{device.replace(':', '')}")
                found[device] = list(
                    retriever.search(release, "corpus", folder / f"{kind}-{device.replace(':', '')}", questions, 3)
                )
            pairs = [
                (a, b)
                for mine, other in zip(found["cpu"], found[setting.device], strict=True)
                for a, b in zip(mine, other, strict=True)
            ]
            off = max(abs(a[1] - b[1]) for a, b in pairs)
            same = all(a[0] == b[0] or abs(a[1] - b[1]) < 1e-3 for a, b in pairs)
            rows.append(check(kind, same and off < 1e-2, f"{len(pairs)} hits, scores off by {off:.1e} at most"))
    return rows


def check_compile(setting: Setting) -> Rows:
    from baselines.models.devices import compile_transformers
    from baselines.models.encoder import Encoder
    from baselines.models.loading import open_dual

    texts = passages_of(setting, setting.of(512, 16))
    dtype = "fp16" if setting.cuda else "fp32"
    model = open_dual(str(setting.model), setting.device, dtype, 128)
    plain = Encoder(model, "document").encode(texts)
    compile_transformers(model)
    begin = time.perf_counter()
    near = cosines(Encoder(model, "document").encode(texts), plain)
    seen = f"cosine with the embeddings before: lowest {near.min():.6f}; {time.perf_counter() - begin:.0f} s to compile and encode"
    return [check("torch.compile", bool(near.min() > 0.9999), seen)]


def check_nccl(setting: Setting) -> Rows:
    """A group of one process: the loss that gathers over devices, and its gradient, are those without a group."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.util import dot_score

    model = SentenceTransformer(str(setting.model), device=setting.device).eval()
    texts = passages_of(setting, 16)
    features = [
        {k: v.to(setting.device) for k, v in model.preprocess(some).items() if torch.is_tensor(v)}
        for some in (texts[:8], texts[8:])
    ]

    def loss(gather: bool) -> tuple[float, float]:
        model.zero_grad()
        function = CachedMultipleNegativesRankingLoss(model, 50.0, dot_score, 4, gather_across_devices=gather)
        value = function([dict(each) for each in features], None)
        value.backward()
        return value.item(), float(
            torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        )

    alone = loss(False)
    backend = "nccl" if setting.cuda else "gloo"
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    torch.distributed.init_process_group(backend)
    torch.distributed.barrier()
    grouped = loss(True)
    torch.distributed.destroy_process_group()
    same = all(abs(a - b) <= 1e-3 * abs(a) for a, b in zip(alone, grouped, strict=True))
    return [
        check(
            f"{backend}, one process",
            same,
            f"loss {alone[0]:.6f} and {grouped[0]:.6f}, gradient's norm {alone[1]:.4f} and {grouped[1]:.4f}",
        )
    ]


def _small_release(folder: Path) -> tuple[Path, Path]:
    """(the tests' release, a file of negatives)."""
    from releases import QUESTIONS, TEXTS, make_release, md5, tables

    release = make_release(folder / "release", tables(TEXTS))
    lines = [{"query-id": md5(q), "negative-ids": [md5(t) for t in TEXTS[-2:]]} for q in QUESTIONS["train"]]
    file = folder / "negatives.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return release, file


def check_commands(setting: Setting) -> Rows:
    """encode, search and rerank with --device."""
    from tiny_models import write_cross

    device, rows = setting.device, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release, _ = _small_release(folder)
        cross, run = write_cross(folder / "cross"), folder / "dense.run"
        for words in (
            (
                "encode",
                "--release",
                release,
                "--model",
                setting.model,
                "--out",
                folder / "passages",
                "--device",
                device,
            ),
            (
                "search",
                "--release",
                release,
                "--model",
                setting.model,
                "--passages",
                folder / "passages",
                "--device",
                device,
                "--engine",
                "torch",
                "--split",
                "dev",
                "--out",
                run,
            ),
            (
                "rerank",
                "--release",
                release,
                "--model",
                cross,
                "--run",
                run,
                "--device",
                device,
                "--split",
                "dev",
                "--out",
                folder / "reranked.run",
            ),
        ):
            code = command("baselines", *words)
            rows.append(check(f"{words[0]} --device {device}", code == 0, f"exit code {code}"))
        lines = len((folder / "reranked.run").read_text().splitlines())
        rows[-1]["seen"] += f", {lines} lines"
    return rows


def check_training(setting: Setting) -> Rows:
    """A training that is killed and taken up again, against one that ran through; one in bf16, one compiled."""
    import torch
    from safetensors.torch import load_file
    from tiny_models import write_dual

    rows = Kept()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release, negatives = _small_release(folder)
        start = write_dual(folder / "start")
        values = {"train.batch": 4, "train.max_steps": setting.of(60, 12), "train.epochs": 1000, "train.saves": 6}
        values |= {"train.evaluations": 0, "data.negatives_per_positive": 2, "data.passage_length": 64}
        values |= {"model.pooling": "", "model.similarity": ""}
        options: list[object] = ["--release", release, "--negatives", negatives, "--start", start]
        options += ["--device", "cuda" if setting.cuda else "cpu"]

        def begin(out: str, **more: object) -> subprocess.Popen[bytes]:
            sets = [f"--set={key}={value}" for key, value in (values | more).items()]
            words = ["train", "de-bm25-neg-scratch", *options, "--out", folder / out, *sets]
            # A new process: one that is forked from here could not use PyTorch's threads.
            return subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)])

        def weights(out: str) -> Any:
            file = next((folder / out).rglob("model.safetensors"))
            return torch.cat([tensor.float().flatten() for tensor in load_file(file).values()])

        changes = {"train.precision": "bf16", "train.compile": "true"}
        through, killed = begin("through"), begin("killed")
        others = {key: begin(key, **{key: value}) for key, value in changes.items()}
        while killed.poll() is None and not list((folder / "killed.training").glob("checkpoint-*/*.json")):
            time.sleep(0.01)
        killed.kill()
        was_killed = killed.wait() == -signal.SIGKILL
        again = begin("killed")
        ended = again.wait() == through.wait() == 0
        off = float((weights("through") - weights("killed")).abs().max()) if ended else -1.0
        seen = f"killed: {was_killed}; both ended: {ended}; weights off by {off:.1e} at most"
        rows.append(check("train, SIGKILL, train again", ended and 0 <= off < 1e-3, seen))
        for key, process in others.items():
            code = process.wait()
            off = float((weights("through") - weights(key)).abs().max()) if code == 0 else -1.0
            seen = f"exit code {code}, weights off by {off:.1e} from fp32's"
            rows.append(check(f"train {key}={changes[key]}", code == 0, seen))
    return rows


def check_memory(setting: Setting) -> Rows:
    """Out of memory is one line. The card is made small for it."""
    import torch

    if setting.cuda:
        torch.cuda.set_per_process_memory_fraction(0.004)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(said):
        words = ["encode", "--release", setting.release, "--model", setting.model, "--out", Path(name) / "out"]
        code = (
            command("baselines", *words, "--device", setting.device, "--batch-tokens", 10_000_000, "--quiet")
            if setting.cuda
            else 1
        )
    lines = said.getvalue().strip().splitlines() or ["(no card)"]
    return [
        check(
            "out of memory", code == 1 and len(lines) == 1, f"exit code {code}, {len(lines)} lines: {lines[-1][:120]}"
        )
    ]


def check_faiss(setting: Setting) -> Rows:
    import numpy as np

    from baselines.vectors.engines import FaissEngine

    if not importlib.util.find_spec("faiss"):
        return [check("FAISS", True, "not installed")]
    import faiss

    queries, passages = unit_vectors(1, 20, 64), unit_vectors(2, 5_000, 64)
    engine = FaissEngine(queries, 10, setting.device)
    engine.add(0, engine.prepare(passages))
    best = np.argsort(-(queries.astype(np.float64) @ passages.astype(np.float64).T), axis=1)[:, :10]
    same = all({*a} == {*b} for a, b in zip(engine.best()[1].tolist(), best.tolist(), strict=True))
    return [
        check(
            "FAISS", same, f"{faiss.__version__}, on a GPU: {hasattr(faiss, 'StandardGpuResources') and setting.cuda}"
        )
    ]


# --- speed ---


def ceilings(setting: Setting) -> Rows:
    """The rates that no program here can exceed: large products, products of BERT's shapes, copies."""
    import torch

    rows = Kept()
    device = setting.device
    size = setting.of(8192, 512)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        took, _ = timed(setting, lambda one=one, other=other: [one @ other for _ in range(10)], 5, 2)
        rows.append(
            {"ceiling": f"{name} product, {size} x {size} x {size}", "TFLOP/s": round(20 * size**3 / took / 1e12, 1)}
        )
    tokens = setting.of(98_304, 512)
    for inner, outer in ((768, 768), (768, 3072), (3072, 768), (384, 384), (384, 1536), (1536, 384)):
        layer = torch.nn.Linear(inner, outer, device=device, dtype=torch.float16 if setting.cuda else torch.float32)
        given = torch.randn(tokens, inner, device=device, dtype=layer.weight.dtype)
        with torch.inference_mode():
            took, _ = timed(setting, lambda layer=layer, given=given: [layer(given) for _ in range(5)], 3)
        rate = 10 * tokens * inner * outer / took / 1e12
        rows.append({"ceiling": f"linear layer {inner} to {outer} of {tokens:,} tokens", "TFLOP/s": round(rate, 1)})
    count = setting.of(1 << 31, 1 << 20)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    took, _ = timed(setting, source.clone, 5, 2)
    rows.append(
        {"ceiling": f"copy of {count >> 20} MiB, bytes read and written", "GB/s": round(2 * count / took / 1e9, 1)}
    )
    if setting.cuda:
        host = torch.ones(1 << 29, dtype=torch.uint8).pin_memory()
        took, _ = timed(setting, lambda: host.to(device, non_blocking=True), 5, 2)
        rows.append({"ceiling": "pinned host memory to the card", "GB/s": round((1 << 29) / took / 1e9, 1)})
    return rows


def rate_of(setting: Setting, dtype: str = "bf16") -> float:
    """Operations a second of the large product, measured here."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    size = setting.of(8192, 512)
    one, other = (torch.randn(size, size, device=setting.device).to(kind) for _ in range(2))
    took, _ = timed(setting, lambda: [one @ other for _ in range(10)], 5, 2)
    return 20 * size**3 / took


def encoding(setting: Setting) -> Rows:
    """Passages a second: a BERT of base size at 380 tokens, and e5-small on real passages."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from baselines.models.ahead import MANY, Ahead
    from baselines.models.devices import compile_transformers, tokenizers
    from baselines.models.encoder import Encoder
    from baselines.models.loading import DTYPES, open_dual

    rows = Kept()
    dtype = "fp16" if setting.cuda else "fp32"
    rate = rate_of(setting, dtype)
    processes = tokenizers([setting.device])

    def row(name: str, model: Any, texts: list[str], lengths: list[int], function: Callable[[], Any]) -> None:
        took, _ = timed(setting, function, setting.of(2, 1))
        share = forward_operations(model, lengths) / took / rate
        rows.append(
            {
                "model": name,
                "texts": len(texts),
                "passages/s": round(len(texts) / took),
                "share of the matrix rate": round(share, 3),
            }
        )

    with tempfile.TemporaryDirectory() as name:
        module = Transformer(str(bert(Path(name) / "bert", setting)), query_length=32, document_length=384)
        modules = [module, Pooling(module.get_embedding_dimension(), "cls")]
        model = SentenceTransformer(modules=modules, similarity_fn_name="dot", device="cpu")
        model = model.to(setting.device, DTYPES[dtype]).eval()
    texts, tokens = characters(setting.of(8_192, 16), 378), setting.of(98_304, 2_048)
    lengths = [380] * len(texts)
    ahead = Ahead(model, {}, 0, pin=False)
    batch = {k: v.to(setting.device) for k, v in ahead.tokens(texts[: tokens // 384]).items() if torch.is_tensor(v)}
    few = len(batch["input_ids"])

    def forward() -> Any:
        with torch.inference_mode():
            return [model(dict(batch), task="document")["sentence_embedding"] for _ in range(4)]

    row("BERT-base, tokens at hand", model, texts[:few] * 4, [380] * few * 4, forward)
    row(
        "BERT-base, sentence-transformers' encode",
        model,
        texts,
        lengths,
        lambda: model.encode_document(texts, batch_size=256, show_progress_bar=False),
    )
    for budget in (tokens // 3, tokens):
        encoder = Encoder(model, "document", budget, processes)
        row(
            f"BERT-base, encode, batches of {budget:,} tokens",
            model,
            texts,
            lengths,
            lambda encoder=encoder: encoder.encode(texts),
        )
    model.transformers_model.set_attn_implementation("eager")
    row("BERT-base, tokens at hand, without SDPA", model, texts[:few] * 4, [380] * few * 4, forward)
    model.transformers_model.set_attn_implementation("sdpa")
    compile_transformers(model)
    row("BERT-base, compiled, tokens at hand", model, texts[:few] * 4, [380] * few * 4, forward)
    row("BERT-base, compiled, encode", model, texts, lengths, lambda: encoder.encode(texts))
    if importlib.util.find_spec("flash_attn"):
        rows.append({"model": "flash_attn is installed", "texts": 0})
    real = passages_of(setting, setting.of(16_384, 16))
    small = open_dual(str(setting.model), setting.device, dtype)
    sizes = [min(512, len(each)) for each in small.tokenizer(real)["input_ids"]]
    encoder = Encoder(small, "document", tokens, processes)
    row(f"e5-small, encode, {statistics.mean(sizes):.0f} tokens", small, real, sizes, lambda: encoder.encode(real))
    compile_transformers(small)
    row("e5-small, compiled, encode", small, real, sizes, lambda: encoder.encode(real))
    if processes:
        several = Encoder(open_dual(str(setting.model), setting.device, dtype), "document", tokens, processes)
        many = real * (MANY // len(real) + 1)
        name = f"e5-small, encode, {processes} processes that tokenise"
        row(name, small, many, sizes * (len(many) // len(real)), lambda: several.encode(many))
    return rows


def training(setting: Setting) -> Rows:
    """Rows a second of official-de and official-ce at full lengths, from random weights of BERT-base."""
    import torch
    from transformers import PreTrainedModel, TrainerCallback

    from baselines.models.libraries import quiet_libraries
    from baselines.train import models, trainers
    from baselines.train.recipe import read_recipe
    from baselines.train.rows import Batches

    from baselines.models.devices import compile_transformers

    quiet_libraries()
    rows = Kept()
    rate = rate_of(setting, "bf16" if setting.cuda else "fp32")
    length, timed_steps = setting.of(384, 24), setting.of(4, 1)
    passages = characters(setting.of(2_048, 16), length - 3)
    queries = characters(setting.of(2_048, 16), 30 if not setting.small else 8, 1)

    class Texts(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index % len(self))

    dual = Texts(
        {"query": q, "positive": p, "negative_1": passages[-n]}
        for n, (q, p) in enumerate(zip(queries, passages, strict=True), 1)
    )
    cross = Texts(
        {"query": q, "passage": p, "label": float(n % 5 == 0)}
        for n, (q, p) in enumerate(zip(queries, passages, strict=True))
    )
    texts = passages_of(setting, setting.of(2_048, 16))
    real = Texts({"query": p[:16], "positive": p, "negative_1": texts[-n]} for n, p in enumerate(texts, 1))
    dual.column_names = real.column_names = ["query", "positive", "negative_1"]
    cross.column_names = ["query", "passage", "label"]

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            synchronize(setting)
            self.times.append(time.perf_counter())

    def run(name: str, recipe_name: str, data: Any, start: Path, *values: str) -> None:
        if time.monotonic() > deadline:
            rows.append({"training": name, "rows/s": "no time left"})
            return
        sets = [f"train.max_steps={timed_steps + 2}", "train.saves=0", "train.evaluations=0", "train.epochs=1000"]
        sets += ["train.workers=6", *values]
        if setting.small:
            sets += ["train.batch=8", f"data.passage_length={length}", "data.query_length=12"]
        recipe = read_recipe(recipe_name, sets)
        if setting.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            made = Batches(data, recipe.train.batch, recipe.train.epochs, 0, max_steps=recipe.train.max_steps)
            given = trainers.arguments(recipe, Path(folder) / "states", made, setting.device)
            torch.manual_seed(0)
            if recipe.model.kind == "cross":
                model = models.cross_encoder(recipe, str(start), setting.device)
                trainer = trainers.cross_trainer(recipe, model, data, made, given)
            else:
                model = models.dual_encoder(recipe, str(start), setting.device)
                trainer = trainers.dual_trainer(recipe, model, data, made, given)
            if recipe.train.compile:
                compile_transformers(trainer.model)
            clock = Clock()
            trainer.add_callback(clock)
            begin = time.perf_counter()
            try:
                trainer.train()
            except torch.cuda.OutOfMemoryError:
                rows.append(
                    {"training": name, "rows/s": "out of memory", "GiB": round(peak_memory(setting) / 2**30, 1)}
                )
                return
        seconds = (clock.times[-1] - clock.times[1]) / (len(clock.times) - 2)
        texts = [own for number in range(64) for own in lengths_of(model, data[number])]
        a_row = forward_operations(model, texts) / 64
        passes = (
            4 if recipe.model.kind == "dual" else 3
        )  # a backward pass is two; cached gradients need a second forward
        passes += 2 if recipe.train.adversarial else 0  # one more forward pass, and one back to its embeddings
        config = next(module for module in model.modules() if isinstance(module, PreTrainedModel)).config
        tokens = trainers.tokens_at_once(recipe, torch.device(setting.device)) or made.batch * length
        wide = 4 if recipe.train.precision == "fp32" else 2
        weights = sum(each.numel() for each in model.parameters())
        formula = memory_formula(config.num_hidden_layers, config.hidden_size, tokens, wide, weights)
        rows.append(
            {
                "training": name,
                "rows/s": round(made.batch / seconds, 1),
                "tokens a row": round(sum(texts) / 64),
                "share of the matrix rate": round(a_row * passes * made.batch / seconds / rate, 3),
                "GiB": round(peak_memory(setting) / 2**30, 1),
                "formula, GiB": round(formula / 2**30, 1),
                "first step, s": round(clock.times[0] - begin, 1),
            }
        )

    def lengths_of(model: Any, row: dict[str, Any]) -> list[int]:
        """The tokens of the texts of a row that the model reads one by one."""
        if "label" in row:
            return [int(model.preprocess([(row["query"], row["passage"])])["attention_mask"].sum())]
        tasks = {name: "query" if name == "query" else "document" for name in row}
        return [int(model.preprocess([row[name]], task=tasks[name])["attention_mask"].sum()) for name in row]

    deadline = time.monotonic() + setting.seconds - 45
    compiled = "train.compile=true"
    with tempfile.TemporaryDirectory() as name:
        base, pairs = bert(Path(name) / "bert", setting), bert(Path(name) / "pairs", setting, 2)
        own = [
            "model.pooling=",
            "model.similarity=",
            "train.scale=50",
            "train.batch=512",
            f"model.start={setting.model}",
        ]
        run("official-de, 32 rows at once", "official-de", dual, base, f"train.mini_batch_tokens={32 * length}")
        run("official-de", "official-de", dual, base)
        run("official-de, 65,536 tokens at once", "official-de", dual, base, "train.mini_batch_tokens=65536")
        run("e5-small, real passages", "de-bm25-neg", real, setting.model, *own)
        run("e5-small, 65,536 tokens", "de-bm25-neg", real, setting.model, *own, "train.mini_batch_tokens=65536")
        run("e5-small, 131,072 tokens", "de-bm25-neg", real, setting.model, *own, "train.mini_batch_tokens=131072")
        run("e5-small, compiled", "de-bm25-neg", real, setting.model, *own, compiled)
        run("official-ce (fp32: TF32 on a GPU)", "official-ce", cross, pairs)
        run("official-ce in bf16", "official-ce", cross, pairs, "train.precision=bf16")
        run("official-ce in bf16, compiled", "official-ce", cross, pairs, "train.precision=bf16", compiled)
        run("official-de, compiled", "official-de", dual, base, compiled)
    return rows


def searching(setting: Setting) -> Rows:
    """2,000 queries against a million passages: seconds of the candidates and of the whole search, beside the floors."""
    import numpy as np
    import torch

    from baselines.vectors import scan
    from baselines.vectors.engines import TorchEngine

    count, width, asked = setting.of(1_000_000, 5_000), setting.of(768, 32), setting.of(2_000, 20)
    queries = unit_vectors(0, asked, width)
    with tempfile.TemporaryDirectory(dir=ROOT / WORK) as name:
        vectors = write_vectors(Path(name), count, width, setting.device)
        engine = lambda: TorchEngine(queries, 100, setting.device)  # noqa: E731
        candidates, (_, found) = timed(setting, lambda: scan.candidates(vectors, [engine()], 100), 3, 2)
        whole, hits = timed(
            setting, lambda: list(scan.search(vectors, queries, [engine()], 50, 100, lambda: np.arange(count))), 2, 1
        )
        copying, _ = timed(
            setting, lambda: [torch.from_numpy(np.array(block)) for _, block in vectors.blocks(1 << 16)], 2, 1
        )
        checked = setting.of(100, 5)
        exact = queries[:checked].astype(np.float32) @ vectors.all().astype(np.float32).T
    lowest = -np.partition(-exact, 49, axis=1)[:, 49]
    right = all(exact[number, hits[number][0]].min() > lowest[number] - 1e-5 for number in range(checked))
    operations, bytes_ = 2.0 * asked * count * width, 2.0 * count * width
    rates = {kind: rate_of(setting, kind) for kind in ("fp16", "fp32")}
    rows: Rows = [
        {"search": "candidates (TorchEngine)", "s": round(candidates, 4), "queries/s": round(asked / candidates)},
        {"search": "whole, scores in 64 bits on the CPU", "s": round(whole, 4), "queries/s": round(asked / whole)},
        {"search": "floor: operations in fp16", "s": round(operations / rates["fp16"], 4)},
        {"search": "floor: operations in fp32", "s": round(operations / rates["fp32"], 4)},
        {"search": "reading all embeddings once, one thread", "s": round(copying, 4)},
        {"search": f"top 50 as the CPU's but for 1e-5, {checked} queries", "s": str(right)},
    ]
    if setting.cuda:
        host = torch.ones(1 << 29, dtype=torch.uint8).pin_memory()
        took, _ = timed(setting, lambda: host.to(setting.device, non_blocking=True), 3, 1)
        rows.append({"search": "floor: bytes from the host's memory", "s": round(bytes_ / ((1 << 29) / took), 4)})
    return rows


# --- train ---


def real_training(setting: Setting) -> Rows:
    """The tables that fit into the time: of seed 0 Table 4, then 5, then 7 and 8; then of more seeds."""
    runs, out = WORK / "runs", ROOT / WORK / "reports"
    if setting.small:
        runs, out = (setting.settings.parent / name for name in ("runs", "reports"))
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + setting.seconds
    for seed in range(1 if setting.small else 5):
        for tables in ([4], [4, 5], [4, 5, 7, 8]) if not setting.small else ([4],):
            report = out / f"seed{seed}.tables{'-'.join(map(str, tables))}.json"
            if report.exists():
                continue
            chosen = out / f"seed{seed}.toml"
            text = setting.settings.read_text(encoding="utf-8").replace(
                "intfloat/multilingual-e5-small", str(setting.model)
            )
            chosen.write_text(text.replace('["*"]\n', f'["*"]\ntrain.seed = {seed}\n'), encoding="utf-8")
            words = [
                "reproduce",
                "--release",
                setting.release,
                "--table",
                *tables,
                "--settings",
                chosen,
                "--out",
                runs,
                "--one-process",
                "--any-code",
                "--format",
                "json",
            ]
            left = deadline - time.monotonic()
            with open(report.with_suffix(".part"), "w", encoding="utf-8") as file:
                process = subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)], stdout=file, cwd=ROOT)
                try:
                    code = process.wait(timeout=max(1.0, left - 10))
                except subprocess.TimeoutExpired:
                    process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(8)
                    process.kill()
                    return _trained(out)
            if code:
                raise RuntimeError(f"reproduce ended with exit code {code}")
            report.with_suffix(".part").rename(report)
    return _trained(out)


def _trained(out: Path) -> Rows:
    rows = Kept()
    for seed in sorted({path.name.split(".")[0] for path in out.glob("*.json")}):
        report = json.loads(
            max(out.glob(f"{seed}.*.json"), key=lambda path: len(path.name)).read_text(encoding="utf-8")
        )
        for each in report["rows"]:
            low, high = each["interval"]
            rows.append(
                {
                    "seed": seed,
                    "table": each["table"],
                    "row": each["title"],
                    "measure": each["metric"],
                    "ours": f"{each['ours']:.2f} ({low:.1f} to {high:.1f})",
                }
            )
        seconds = {Path(name).name if "/" in name else name: step["seconds"] for name, step in report["steps"].items()}
        rows.append({"seed": seed, "row": "seconds of the steps", "measure": "", "ours": json.dumps(seconds)})
    return rows


# --- the runner ---

# The seconds that a step may take. Together the parts stay below nine minutes.
PARTS: dict[str, list[tuple[Callable[[Setting], Rows], int]]] = {
    "checks": [
        (check_devices, 30),
        (check_pinned, 40),
        (check_precision, 90),
        (check_search, 40),
        (check_kinds, 40),
        (check_compile, 90),
        (check_nccl, 40),
        (check_commands, 60),
        (check_training, 150),
        (check_memory, 40),
        (check_faiss, 30),
    ],
    "speed": [(ceilings, 30), (searching, 70), (encoding, 130), (training, 270)],
    "train": [(real_training, 570)],
}


def run_step(function: Callable[[Setting], Rows], setting: Setting, log: Path, limit: float) -> dict[str, Any]:
    """The result of a step, in a process of its own that is killed with its children at the limit."""

    partial = log.with_suffix(".partial")
    partial.unlink(missing_ok=True)

    def inside(connection: Any) -> None:
        os.setsid()
        with open(log, "w", buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        Kept.file = partial
        try:
            connection.send((function(setting), ""))
        except BaseException as error:
            traceback.print_exc()
            connection.send(([], f"{type(error).__name__}: {error}"[:300]))
        os._exit(0)

    # Forked, so that the libraries load once; no process has used the GPU before.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(False)
    process = context.Process(target=inside, args=(sender,))
    begin = time.monotonic()
    process.start()
    sender.close()
    try:
        rows, error = receiver.recv() if receiver.poll(limit) else ([], f"not done after {limit:.0f} s")
    except EOFError:
        rows, error = [], "its process died"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    if not rows and partial.exists():
        rows = json.loads(partial.read_text(encoding="utf-8"))
    return {"rows": rows, "error": error, "seconds": round(time.monotonic() - begin, 1)}


def machine(setting: Setting) -> dict[str, Any]:
    """The card as nvidia-smi names it (asking PyTorch would use the GPU before the steps fork), cores and versions."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        card = (
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() if setting.cuda else "none"
        )
        return {
            "card": card,
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "sentence-transformers", "accelerate")},
        }
    return {"card": setting.device}


def table(rows: Rows) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def write_results(out: Path, about: dict[str, Any], results: dict[str, Any]) -> None:
    (out / "results.json").write_text(
        json.dumps({"machine": about, **results}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    parts = [", ".join(f"{name}: {value}" for name, value in about.items())]
    checks = [row for name, each in results.items() if name.startswith("check_") for row in each["rows"]]
    checks += [
        check(name, False, each["error"])
        for name, each in results.items()
        if name.startswith("check_") and each["error"]
    ]
    if checks:
        parts.append(table(checks))
    for name, each in results.items():
        if not name.startswith("check_"):
            parts.append(
                f"{name}, {each['seconds']} s{': ' + each['error'] if each['error'] else ''}\n\n{table(each['rows'])}"
            )
    (out / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def unpack(pack: Path) -> Setting:
    """The pack's model, release and runs, unpacked where the steps look for them."""
    work = ROOT / WORK
    model = work / "model"
    if not model.is_dir():
        main = runpy.run_path(str(pack / "unpack_q4.py"))["main"]
        main(pack / "model.npz", pack / "tokenizer", model)
    if not (work / "runs").is_dir():
        with tarfile.open(pack / "runs.tar.xz") as tar:
            tar.extractall(work / "new", filter="data")
        for path in (work / "new").glob("*.gz"):
            path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
            stamp = path.with_name(f".{path.name}.step.json")
            content = json.loads(stamp.read_text(encoding="utf-8"))
            content["files"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
            stamp.write_text(json.dumps(content), encoding="utf-8")
        (work / "new").rename(work / "runs")
    release = pack / "release" if pack.is_absolute() else Path(os.path.relpath(ROOT / pack / "release"))
    return Setting("", False, model, release, ROOT / "baselines" / "settings" / "e5-gpu.toml", 0)


def tiny(setting: Setting) -> Rows:
    """Write a tiny model and the tests' release, for a run without a card."""
    from releases import make_release, tables
    from tiny_models import write_dual

    setting.settings.parent.mkdir(parents=True, exist_ok=True)
    write_dual(setting.model, similarity="cosine", prompts={"query": "问：", "document": "文："})
    joined = ("train", "train"), ("dev", "dev")  # their negatives would count as the official data's
    make_release(setting.release, {key: rows for key, rows in tables().items() if key not in joined})
    setting.settings.write_text(
        f'["*"]\ntrain.batch = 4\ntrain.max_steps = 2\ntrain.evaluations = 0\n[de-bm25-neg]\nmodel.start = "{setting.model}"\n'
        'model.pooling = ""\nmodel.similarity = ""\ntrain.scale = 20.0\ndata.passage_length = 64\n',
        encoding="utf-8",
    )
    return []


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=["checks", "speed"])
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="these steps of the parts alone, as check_search")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu (default: cuda:0)")
    parser.add_argument("--small", action="store_true", help="tiny models and data: a test of this program")
    parser.add_argument(
        "--pack", type=Path, default=Path("build/gpu-pack"), help="what gpu_pack.py wrote (default: build/gpu-pack)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu/results"), help="default: build/gpu/results")
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything (default: 540)")
    args = parser.parse_args(words)
    begin = time.monotonic()
    os.chdir(ROOT)
    (ROOT / WORK).mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"USE_JAX": "0", "USE_TF": "0"}  # which some libraries import where they are installed
    install_wheels(args.pack)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import sentence_transformers  # noqa: F401 (before the steps fork)

    import baselines.train.training  # noqa: F401

    if args.small:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # a compiler on a CPU takes minutes
        small = (args.out / "small").resolve()
        shutil.rmtree(small, ignore_errors=True)
        base = Setting("", True, small / "model", small / "release", small / "settings.toml", 0)
        run_step(tiny, base, args.out / "tiny.log", 60)  # not here: a process whose PyTorch has threads cannot fork
    else:
        base = unpack(args.pack)
    results: dict[str, Any] = {}
    about = machine(Setting(**{**asdict(base), "device": args.device}))
    for function, limit in _steps(args):
        left = begin + args.limit - time.monotonic()
        if left < 5:
            results[function.__name__] = {"rows": [], "error": "no time left", "seconds": 0}
            continue
        allowed = min(float(limit), left)
        setting = Setting(**{**asdict(base), "device": args.device, "seconds": allowed})
        found = results[function.__name__] = run_step(function, setting, args.out / f"{function.__name__}.log", allowed)
        write_results(args.out, about, results)
        print(f"{function.__name__}: {found['seconds']} s {found['error']}", flush=True)
        if found["rows"]:
            print(table(found["rows"]), flush=True)
    failed = [name for name, each in results.items() if each["error"]]
    failed += [row["check"] for each in results.values() for row in each["rows"] if row.get("passed") is False]
    print(f"{args.out / 'results.md'}: {len(results)} steps, failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def _steps(args: argparse.Namespace) -> Iterator[tuple[Callable[[Setting], Rows], int]]:
    for part in args.parts:
        for function, limit in PARTS[part]:
            if not args.steps or function.__name__ in args.steps:
                yield function, limit


if __name__ == "__main__":
    sys.exit(main())
