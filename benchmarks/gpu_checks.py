"""Checks of the code that runs on a GPU, for the part `checks` of gpu.py."""

import contextlib
import importlib.util
import io
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import command, timed
from gpu_common import Kept, Rows, Setting, Step, check, passages_of, unit_vectors, write_vectors
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.util import dot_score
from tiny_kinds import write_multi_vector, write_sparse
from tiny_models import write_cross, write_dual

from baselines.core.settings import ModelSettings
from baselines.retrieve import exact_search
from baselines.retrieve.devices import Work, compile_transformers, computes_bf16, devices_of, dtype_of
from baselines.retrieve.encoder import Prefetcher, TextEncoder
from baselines.retrieve.models import open_encoder
from baselines.retrieve.search_engines import FaissEngine
from baselines.retrieve.torch_engine import TorchEngine
from baselines.retrieve.vector_index import open_retriever
from builders.store.reader import open_release


def cosines(one: Any, other: Any) -> Any:
    """Return the cosine of each row of ``one`` with the same row of ``other``."""
    wide = [np.asarray(each, np.float64) for each in (one, other)]
    lengths = [np.linalg.norm(each, axis=1) for each in wide]
    return (wide[0] * wide[1]).sum(1) / (lengths[0] * lengths[1])


@contextlib.contextmanager
def small_release() -> Iterator[tuple[Path, Path]]:
    """Yield a temporary folder and the tests' release in it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name), make_release(Path(name) / "release", tables(TEXTS))


def check_devices(setting: Setting) -> Rows:
    """Check that the project finds the GPU, and report its automatic precision."""
    found = devices_of(None)
    seen = f"{found}, auto is {dtype_of('auto', found[0])}, computes bf16: {computes_bf16(setting.device)}"
    if setting.cuda:
        seen += f", {torch.cuda.get_device_name()}, capability {torch.cuda.get_device_capability()}"
    return [check("devices", found[0] != "cpu" or not setting.cuda, seen)]


def check_pinned(setting: Setting) -> Rows:
    """Compare prefetched tokens with the model's own tokens. On a GPU, check that the tokens are in pinned memory.

    Tokens are prefetched by a thread, and then by two processes.
    """
    model = SentenceTransformer(str(setting.model), device="cpu")
    texts = passages_of(setting, 64)
    batches = [texts[start : start + 16] for start in range(0, 64, 16)]
    plain = [model.preprocess(some)["input_ids"] for some in batches]
    rows = Kept()
    for processes in (0, 2):
        found = [each["input_ids"] for each in Prefetcher(model, {}, processes, pin=setting.cuda)(batches)]
        same = all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        pinned = setting.cuda and all(each.is_pinned() for each in found)
        seen = f"same tokens: {same}, pinned: {pinned}"
        rows.append(check(f"prefetched tokens, {processes} processes", same and pinned == setting.cuda, seen))
    return rows


def check_precision(setting: Setting) -> Rows:
    """Compare fp32, fp16 and bf16 on the device with fp32 on the CPU, by cosines and by MRR@10."""
    release, count = open_release(setting.release), setting.of(1_500, 40)
    qrels = release.table("qrels", "dev", ["query-id", "corpus-id"]).to_pydict()
    positive = dict(zip(qrels["query-id"], qrels["corpus-id"], strict=True))
    asked = list(positive)[: setting.of(300, 2)]
    wanted = release.texts("corpus", "corpus", {positive[query] for query in asked})
    others = {text: None for text in passages_of(setting, count) if text not in wanted.values()}
    texts = [*wanted.values(), *others][:count]
    answers = np.array([list(wanted).index(positive[query]) for query in asked])
    queries = [release.texts("queries", "dev", asked)[query] for query in asked]

    def vectors(device: str, dtype: str) -> tuple[Any, Any]:
        model = open_encoder(ModelSettings(str(setting.model), max_length=setting.of(512, 64)), device, dtype)
        return TextEncoder(model, "query").encode(queries), TextEncoder(model, "document").encode(texts)

    def mrr(found: tuple[Any, Any]) -> float:
        scores = found[0].astype(np.float32) @ found[1].astype(np.float32).T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        places = [np.flatnonzero(own == answer) for own, answer in zip(best, answers, strict=True)]
        return 100 * statistics.mean(1 / (own[0] + 1) if len(own) else 0.0 for own in places)

    reference = vectors("cpu", "fp32")
    rows = Kept()
    for dtype, least in (("fp32", 0.99999), ("fp16", 0.9999), ("bf16", 0.999)):
        found = vectors(setting.device, dtype)
        near, change = cosines(found[1], reference[1]), mrr(found) - mrr(reference)
        seen = f"cosine with the CPU's fp32: lowest {near.min():.6f}, mean {near.mean():.6f}; "
        seen += f"MRR@10 {mrr(found):.2f} ({change:+.2f})"
        rows.append(check(f"encode in {dtype}", bool(near.min() > least and abs(change) < 1), seen))
    return rows


def check_search(setting: Setting) -> Rows:
    """Compare the engine's candidates and final hits with products in 64 bits."""
    rows, width = setting.of(100_000, 3_000), setting.of(768, 64)
    queries = unit_vectors(9, setting.of(200, 20), width)
    with tempfile.TemporaryDirectory() as name:
        vectors = write_vectors(Path(name), rows, width, setting.device)
        exact = queries.astype(np.float64) @ vectors.all().astype(np.float64).T
        loose, found = exact_search.candidates(vectors, [TorchEngine(queries, 100, setting.device)], 100)
        error = float(np.abs(loose - np.take_along_axis(exact, found, 1)).max())
        slack = width * 2.0**-22 * vectors.longest
        engines = [TorchEngine(queries, 100, setting.device)]
        hits = list(exact_search.search(vectors, queries, engines, 50, 100, lambda: np.arange(rows)))
    best = np.argsort(-exact, axis=1, kind="stable")[:, :50]
    same = all({*own.tolist()} == {*some.tolist()} for own, (some, _) in zip(best, hits, strict=True))
    seen = f"same top 50 of {rows:,} as in 64 bits: {same}; error of scores {error:.1e} (allowed: {slack:.1e})"
    return [check("TorchEngine", same and error < slack, seen)]


def check_kinds(setting: Setting) -> Rows:
    """Compare late interaction and a sparse encoder on the device with the CPU, in fp32."""
    rows = Kept()
    questions = [question for some in QUESTIONS.values() for question in some]
    with small_release() as (folder, path):
        release = open_release(path)
        for kind, write in (("multi-vector", write_multi_vector), ("sparse", write_sparse)):
            model, found = str(write(folder / kind)), []
            for number, device in enumerate(("cpu", setting.device)):
                retriever = open_retriever(ModelSettings(model), Work((device,), "fp32"), kind)
                index = retriever.index(release, "corpus", folder / f"{kind}{number}")
                hits = retriever.search(release, "corpus", index, questions, 3)
                found.append([hit for own in hits for hit in own])
            off = max(abs(a[1] - b[1]) for a, b in zip(*found, strict=True))
            same = all(a[0] == b[0] or abs(a[1] - b[1]) < 1e-3 for a, b in zip(*found, strict=True))
            rows.append(check(kind, same and off < 1e-2, f"{len(found[0])} hits, largest error of scores {off:.1e}"))
    return rows


def check_compile(setting: Setting) -> Rows:
    """Compare a model's embeddings before and after compilation."""
    texts = passages_of(setting, setting.of(512, 16))
    dtype = "fp16" if setting.cuda else "fp32"
    model = open_encoder(ModelSettings(str(setting.model), max_length=128), setting.device, dtype)
    plain = TextEncoder(model, "document").encode(texts)
    compile_transformers(model)
    took, compiled = timed(lambda: TextEncoder(model, "document").encode(texts), setting.device)
    lowest = float(cosines(compiled, plain).min())
    seen = f"lowest cosine with uncompiled embeddings: {lowest:.6f}; {took:.0f} s to compile and encode"
    return [check("torch.compile", lowest > 0.9999, seen)]


def check_nccl(setting: Setting) -> Rows:
    """Compare the loss in a process group of one, which gathers over devices, with the loss without a group."""
    model = SentenceTransformer(str(setting.model), device=setting.device).eval()
    texts = passages_of(setting, 16)
    features = [
        {key: value.to(setting.device) for key, value in model.preprocess(some).items() if torch.is_tensor(value)}
        for some in (texts[:8], texts[8:])
    ]

    def loss(gather: bool) -> tuple[float, float]:
        model.zero_grad()
        function = CachedMultipleNegativesRankingLoss(model, 50.0, dot_score, 4, gather_across_devices=gather)
        value = function([dict(each) for each in features], None)
        value.backward()
        norms = [weights.grad.norm() for weights in model.parameters() if weights.grad is not None]
        return value.item(), float(torch.stack(norms).norm())

    alone = loss(False)
    backend = "nccl" if setting.cuda else "gloo"
    with tempfile.TemporaryDirectory() as name:
        torch.distributed.init_process_group(backend, init_method=f"file://{name}/store", rank=0, world_size=1)
        torch.distributed.barrier()
        grouped = loss(True)
        torch.distributed.destroy_process_group()
    same = all(abs(a - b) <= 1e-3 * abs(a) for a, b in zip(alone, grouped, strict=True))
    seen = f"loss {alone[0]:.6f} and {grouped[0]:.6f}, gradient's norm {alone[1]:.4f} and {grouped[1]:.4f}"
    return [check(f"{backend}, one process", same, seen)]


def check_commands(setting: Setting) -> Rows:
    """Run encode, search and rerank with --device."""
    rows = Kept()
    with small_release() as (folder, release):
        run, reranked, passages = folder / "dense.run", folder / "reranked.run", folder / "passages"
        options: dict[str, list[object]] = {
            "encode": ["--model", setting.model, "--out", passages],
            "search": ["--model", setting.model, "--passages", passages, "--engine", "torch", "--out", run],
            "rerank": ["--model", write_cross(folder / "cross"), "--run", run, "--out", reranked],
        }
        for verb, words in options.items():
            split = ["--split", "dev"] if verb != "encode" else []
            code = command("baselines", verb, "--release", release, "--device", setting.device, *split, *words)
            rows.append(check(f"{verb} --device {setting.device}", code == 0, f"exit code {code}"))
        rows[-1]["seen"] += f", {len(reranked.read_text().splitlines())} lines"
    return rows


def check_training(setting: Setting) -> Rows:
    """Compare a killed and resumed training with an uninterrupted training. Also train in bf16 and with compilation."""
    rows = Kept()
    with small_release() as (folder, release):
        lines = [{"query-id": md5(q), "negative-ids": [md5(t) for t in TEXTS[-2:]]} for q in QUESTIONS["train"]]
        negatives = folder / "negatives.jsonl"
        negatives.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        start, device = write_dual(folder / "start"), "cuda" if setting.cuda else "cpu"
        options: list[object] = ["--release", release, "--negatives", negatives, "--start", start, "--device", device]
        values = [f"train.max_steps={setting.of(60, 6)}", f"train.saves={setting.of(6, 3)}", "train.epochs=1000"]
        values += ["train.batch=4", "train.precision=fp32", "train.evaluations=0", "data.negatives_per_positive=2"]
        values += ["data.passage_length=64", "model.pooling=", "model.similarity="]
        options += [f"--set={value}" for value in values]

        def begin(out: str, *more: str) -> subprocess.Popen[bytes]:
            # A forked process could not use PyTorch's threads.
            words = ["train", "de-bm25-neg-scratch", *options, "--out", folder / out, *more]
            return subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)])

        def off(out: str) -> float:
            """Return the largest difference of weights from the uninterrupted training in fp32."""
            files = (next((folder / each).rglob("model.safetensors")) for each in ("through", out))
            one, other = (torch.cat([tensor.flatten() for tensor in load_file(file).values()]) for file in files)
            return float((one.float() - other.float()).abs().max())

        through, killed = begin("through"), begin("killed")
        changes = ["train.precision=bf16", *([] if setting.small else ["train.compile=true"])]
        others = {change: begin(change, f"--set={change}") for change in changes}
        while killed.poll() is None and not list((folder / "killed.training").glob("checkpoint-*/*.json")):
            time.sleep(0.01)
        killed.kill()
        was_killed = killed.wait() == -signal.SIGKILL
        ended = begin("killed").wait() == through.wait() == 0
        change = off("killed") if ended else -1.0
        seen = f"killed: {was_killed}; both succeeded: {ended}; largest difference of weights {change:.1e}"
        rows.append(check("train, SIGKILL, train again", was_killed and ended and 0 <= change < 1e-3, seen))
        for name, process in others.items():
            code = process.wait()
            difference = f", largest difference of weights from fp32 {off(name):.1e}" if code == 0 else ""
            rows.append(check(f"train {name}", code == 0, f"exit code {code}{difference}"))
    return rows


def check_memory(setting: Setting) -> Rows:
    """Limit a command to 0.4 % of the GPU's memory. Check that the command fails with one line on stderr."""
    if not setting.cuda:
        return [check("out of memory", True, "no GPU")]
    torch.cuda.set_per_process_memory_fraction(0.004)
    error = io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(error):
        words = ["encode", "--release", setting.release, "--model", setting.model, "--out", Path(name) / "out"]
        words += ["--device", setting.device, "--batch-tokens", 10_000_000, "--quiet"]
        code = command("baselines", *words)
    lines = error.getvalue().strip().splitlines() or [""]
    seen = f"exit code {code}, {len(lines)} lines: {lines[-1][:120]}"
    return [check("out of memory", code == 1 and len(lines) == 1, seen)]


def check_faiss(setting: Setting) -> Rows:
    """Compare FAISS's hits with products in 64 bits."""
    if not importlib.util.find_spec("faiss"):
        return [check("FAISS", True, "not installed")]
    import faiss

    queries, passages = unit_vectors(1, 20, 64), unit_vectors(2, 5_000, 64)
    engine = FaissEngine(queries, 10, setting.device)
    engine.add(0, engine.prepare(passages))
    best = np.argsort(-(queries.astype(np.float64) @ passages.astype(np.float64).T), axis=1)[:, :10]
    same = all({*a} == {*b} for a, b in zip(engine.best()[1].tolist(), best.tolist(), strict=True))
    on_gpu = hasattr(faiss, "StandardGpuResources") and setting.cuda
    return [check("FAISS", same, f"{faiss.__version__}, on a GPU: {on_gpu}")]


STEPS: list[Step] = [
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
]
