"""Measure on a GPU what docs/gpu.md has not measured, in twelve minutes, and go on where an earlier call stopped.

The steps, in this order:

  heads_in_fp32      heads of re-rankers and encoders in 16 bits: their precision, and ties of scores
  device_scores      scores in 64 bits on the GPU: the same bits as on the CPU, and the seconds of a search
  official_ce        rows a second, share of the matrix rate and memory of official-ce
  unpadded_encoding  encoding without padding, in batches of real tokens; compiled layers; the rate of linear layers
  training_profile   where the seconds of a training step go, with and without compiled layers
  training_speed     rows a second of official-de and e5-small with more tokens at once, and with compiled layers
  tables             Tables 5, 7, 8 and 9 from multilingual-e5-small; the rest of the time

Every step runs in a process of its own with a time limit. Finished steps are in OUT/results.json and are not repeated.
The trainings of `tables` resume. --limit counts the seconds of all calls with the same --out together, so a call after
an interruption has the rest of the twelve minutes. The models and data come from --pack (benchmarks/gpu_pack.py).
--small makes tiny models and data, and needs no GPU.

Examples:

  python benchmarks/card.py
  python benchmarks/card.py --device cpu --small --out build/card-small
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu
from common import ROOT, parser_of, timed, write_json
from gpu_common import Rows, SavedRows, Setting, Step, check, unit_vectors, write_vectors

_LIMIT = 720  # seconds of all calls together
_REPORT_SECONDS = 5  # for the results after the last step
_TABLES = (5, 7, 8)  # Table 9 needs another release
_FIRST_ROW = "ce-bm25-neg-on-bm25"
_CATEGORIES = {
    "optimizer": ("adam", "foreach", "multi_tensor"),
    "attention": ("attention", "flash", "fmha", "softmax"),
    "matrix products": ("gemm", "mm", "cutlass", "cublas", "linear"),
    "norms, activations, dropout": ("norm", "gelu", "elementwise", "dropout", "add", "mul", "copy", "reduce"),
    "embeddings": ("embedding", "index", "gather", "scatter"),
    "copies between host and GPU": ("memcpy", "memset"),
}


def heads_in_fp32(setting: Setting) -> Rows:
    """Check the heads' precision in 16-bit models, and count the distinct scores of a cross-encoder."""
    import torch
    from models import bert, random_texts
    from sentence_transformers import CrossEncoder

    from baselines.retrieve.devices import find_heads, move_model
    from baselines.retrieve.encoder import CrossScorer

    rows = SavedRows()
    pair_count = setting.of(2_000, 40)
    passages = random_texts([setting.of(340, 20)] * pair_count)
    pairs = [(passage[:12], passage) for passage in passages]
    with tempfile.TemporaryDirectory() as name:
        path = bert(Path(name), setting.of(12, 2), setting.of(768, 32), 1)
        for dtype in ("fp32", "fp16", "bf16"):
            model = move_model(
                CrossEncoder(str(path), device="cpu", max_length=setting.of(384, 48)), setting.device, dtype
            )
            heads = list(find_heads(model))
            head_types = {str(weights.dtype) for head in heads for weights in head.parameters()}
            scores = CrossScorer(model).scores(pairs)
            distinct_scores = len(set(scores.tolist()))
            is_wide = bool(heads) and head_types == {str(torch.float32)}
            # Scores of 16 bits would have at most some hundred different values.
            passed = is_wide and distinct_scores > 0.95 * len(set(pairs))
            seen = f"heads in {', '.join(sorted(head_types))}; "
            seen += f"{distinct_scores} distinct scores of {len(set(pairs))} pairs"
            rows.append(check(f"cross-encoder in {dtype}", passed, seen))
    return rows


def device_scores(setting: Setting) -> Rows:
    """Time the parts of a search, and compare the bits of scores on the device with those on the CPU."""
    import numpy as np

    from baselines.retrieve import exact_search
    from baselines.retrieve.torch_engine import TorchEngine

    passage_count, width = setting.of(1_000_000, 5_000), setting.of(768, 32)
    query_count = setting.of(2_000, 20)
    queries = unit_vectors(0, query_count, width)
    # By default, an engine keeps passages on a GPU only, and scores only kept passages in 64 bits.
    keep_bytes = None if setting.cuda else 1 << 30
    rows = SavedRows()

    def find() -> tuple[Any, Any]:
        """Return a new engine after its search, and the candidates' rows, shape (queries, candidates)."""
        engine = TorchEngine(queries, 100, setting.device, keep_bytes=keep_bytes)
        return engine, exact_search.find_candidates(vectors, [engine], 100)[1]

    def search(kept_bytes: int | None) -> Any:
        """Run a whole search. Without kept passages (0), the CPU scores the candidates."""
        engines = [TorchEngine(queries, 100, setting.device, keep_bytes=kept_bytes)]
        return list(exact_search.search_unsorted(vectors, queries, engines, 50, 100, lambda: np.arange(passage_count)))

    with tempfile.TemporaryDirectory(dir=setting.work) as name:
        vectors = write_vectors(Path(name), passage_count, width, setting.device)
        find()  # warm-up
        candidate_seconds, (engine, candidate_rows) = timed(find, setting.device)
        longest_query = 1.001  # at least the norm of every query, because 16-bit unit vectors have rounding errors
        engine_seconds, scores = timed(
            lambda: exact_search.scores_on_devices([engine], candidate_rows, vectors, longest_query), setting.device
        )
        cpu_seconds, cpu_scores = timed(lambda: exact_search.exact_scores(queries, vectors, candidate_rows))
        same_bits = scores is not None and bool(np.array_equal(scores, cpu_scores))
        rows.append(check("scores have the bits of the CPU", same_bits, f"{candidate_rows.size:,} pairs"))
        for name_of_part, seconds in (
            ("candidates", candidate_seconds),
            ("scores in 64 bits on the device", engine_seconds),
            ("scores in 64 bits on the CPU", cpu_seconds),
        ):
            rows.append({"search": name_of_part, "s": round(seconds, 4)})
        for name_of_search, kept_bytes in (
            ("whole, scores on the device", keep_bytes),
            ("whole, scores on the CPU", 0),
        ):
            seconds, _ = timed(lambda kept_bytes=kept_bytes: search(kept_bytes), setting.device, setting.of(2, 1))
            rows.append({"search": name_of_search, "s": round(seconds, 4), "queries/s": round(query_count / seconds)})
    return rows


def official_ce(setting: Setting) -> Rows:
    """Measure official-ce on a random BERT-base: rows a second, share of the matrix rate and memory."""
    from gpu_speed import Texts, product_rate, random_bert, train_speed
    from models import random_texts

    from baselines.train.recipe import read_recipe

    rows = SavedRows()
    row_count, length = setting.of(2_048, 16), setting.of(340, 16)
    passages = random_texts([length] * row_count)
    queries = random_texts([setting.of(30, 8)] * row_count, 1)
    pairs = []
    for number, (query, passage) in enumerate(zip(queries, passages, strict=True)):
        pairs.append({"query": query, "passage": passage, "label": float(number % 5 == 0)})
    values = [f"train.max_steps={setting.of(6, 3)}", "train.saves=0", "train.evaluations=0", "train.epochs=1000"]
    values.append(f"train.workers={setting.of(6, 0)}")
    if setting.small:
        values += ["train.batch=8", "data.passage_length=24"]
    with tempfile.TemporaryDirectory() as name:
        start = random_bert(setting, Path(name) / "pairs", 2)
        for title, precision, is_compiled in (
            ("bf16", "bf16", "false"),
            ("fp32 (TF32 products)", "fp32", "false"),
            ("bf16, compiled layers", "bf16", "true"),
        ):
            recipe = read_recipe(
                "official-ce", [*values, f"train.precision={precision}", f"train.compile={is_compiled}"]
            )
            rate = product_rate(setting, precision if setting.cuda else "fp32")
            speed = train_speed(setting, rate, recipe, Texts(pairs), start)
            rows.append({"training": f"official-ce, {title}"} | speed)
    return rows


def unpadded_encoding(setting: Setting) -> Rows:
    """Measure encoding with and without padding and compiled layers, and compare the vectors."""
    import numpy as np
    import torch
    from gpu_checks import cosines
    from gpu_speed import product_rate
    from models import dual_encoder, forward_operations, random_lengths, random_texts, transformer_of
    from unpadded import encode_unpadded, text_batches, token_batches, use_unpadded_attention

    from baselines.retrieve.devices import DTYPES, compile_transformers
    from baselines.retrieve.encoder import TextEncoder

    rows = SavedRows()
    dtype = "fp16" if setting.cuda else "fp32"
    rate = product_rate(setting, dtype)
    batch_tokens = setting.of(98_304, 512)
    token_limit = 384
    for title, text_lengths in (
        ("380 tokens", [378] * setting.of(8_192, 8)),  # 378 characters, [CLS] and [SEP]
        ("lengths as in the collection", [min(length, 382) for length in random_lengths(setting.of(16_384, 16), 250)]),
    ):
        with tempfile.TemporaryDirectory() as name:
            model = dual_encoder(Path(name), setting.of(12, 2), setting.of(768, 32))
        model = model.to(setting.device, DTYPES[dtype]).eval()
        texts = random_texts(text_lengths)
        token_ids = model.tokenizer(texts, truncation=True, max_length=token_limit)["input_ids"]
        lengths = [len(ids) for ids in token_ids]
        operations = forward_operations(model, lengths)

        def measure(way: str, function: Callable[[], Any], operations: float = operations, title: str = title) -> Any:
            """Add the speed of a function that encodes ``texts``, and return the function's vectors."""
            seconds, vectors = timed(function, setting.device, setting.of(2, 1), setting.of(1, 0))
            share = round(operations / seconds / rate, 3)
            count = len(texts)  # noqa: B023 (called in the same turn of the loop)
            rows.append(
                {"texts": title, "way": way, "passages/s": round(count / seconds), "share of the matrix rate": share}
            )
            return vectors

        encoder = TextEncoder(model, "document", batch_tokens)
        padded = measure("encode", lambda encoder=encoder, texts=texts: encoder.encode(texts))
        prepared_batches = []
        for numbers in token_batches(lengths, batch_tokens):
            prepared_batches.append([token_ids[number] for number in numbers])
        batches = list(text_batches(texts, token_limit, batch_tokens))
        attention = transformer_of(model).config._attn_implementation
        use_unpadded_attention(model)

        def encode(model: Any = model, batches: Any = batches) -> Any:
            return encode_unpadded(model, batches, token_limit)

        measure("unpadded, tokens prepared", lambda encode=encode, prepared=prepared_batches: encode(batches=prepared))
        vectors = measure("unpadded", encode)
        lowest = float(cosines(vectors.float().cpu().numpy(), np.asarray(padded, np.float32)).min())
        rows.append(check(f"unpadded vectors, {title}", lowest > 0.999, f"lowest cosine with `encode` {lowest:.6f}"))
        compile_transformers(model)
        vectors = measure("unpadded, compiled layers", encode)
        lowest = float(cosines(vectors.float().cpu().numpy(), np.asarray(padded, np.float32)).min())
        rows.append(check(f"compiled vectors, {title}", lowest > 0.999, f"lowest cosine with `encode` {lowest:.6f}"))
        transformer_of(model).set_attn_implementation(attention)
        measure("encode, compiled layers", lambda encoder=encoder, texts=texts: encoder.encode(texts))
        if setting.cuda:
            torch.cuda.empty_cache()
    rows.append(linear_layers(setting, rate, dtype, batch_tokens))
    return rows


def linear_layers(setting: Setting, rate: float, dtype: str, tokens: int) -> dict[str, Any]:
    """Return a row with the rate of the linear layers of one BERT layer alone, as a share of the matrix rate."""
    import torch

    from baselines.retrieve.devices import DTYPES

    width = setting.of(768, 32)
    shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    options: dict[str, Any] = {"device": setting.device, "dtype": DTYPES[dtype]}
    layers = [torch.nn.Linear(*shape, **options) for shape in shapes]
    inputs = [torch.randn(tokens, shape[0], **options) for shape in shapes]

    def apply_layers() -> Any:
        return [layer(values) for layer, values in zip(layers, inputs, strict=True)]

    with torch.inference_mode():
        seconds, _ = timed(apply_layers, setting.device, 5, 2)
    operations = sum(2 * tokens * inner * outer for inner, outer in shapes)
    return {"way": "the linear layers alone", "share of the matrix rate": round(operations / seconds / rate, 3)}


def dual_rows(setting: Setting) -> list[dict[str, Any]]:
    """Return random training rows of a dual-encoder: a query, a positive and a negative."""
    from models import random_texts

    # With the official code's three special tokens, a passage has 384 tokens (24 if ``setting.small``).
    row_count, length = setting.of(2_048, 16), setting.of(381, 21)
    passages = random_texts([length] * row_count)
    queries = random_texts([setting.of(30, 8)] * row_count, 1)
    rows = []
    for number, (query, passage) in enumerate(zip(queries, passages, strict=True)):
        rows.append({"query": query, "positive": passage, "negative_1": passages[-number - 1]})
    return rows


def dual_values(setting: Setting) -> list[str]:
    """Return the changes of the recipe official-de for a short training, in the form of `train --set`."""
    values = [f"train.max_steps={setting.of(6, 4)}", "train.saves=0", "train.evaluations=0", "train.epochs=1000"]
    values.append(f"train.workers={setting.of(6, 0)}")
    if setting.small:
        values += ["train.batch=8", "data.passage_length=24", "data.query_length=12"]
    return values


def training_profile(setting: Setting) -> Rows:
    """Profile a step of official-de, with and without compiled layers."""
    rows = SavedRows()
    for title, is_compiled in (("official-de", "false"), ("compiled layers", "true")):
        for row in profile_step(setting, title, is_compiled):
            rows.append(row)
    return rows


def profile_step(setting: Setting, title: str, is_compiled: str) -> Rows:
    """Return the seconds of each kind of kernel, and of waiting, in the last step of a short training."""
    import torch
    from gpu_speed import Texts, random_bert
    from models import trainer_of
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    from transformers import TrainerCallback

    from baselines.retrieve.devices import compile_transformers
    from baselines.train.recipe import read_recipe
    from baselines.train.training_rows import TrainingBatches

    recipe = read_recipe("official-de", [*dual_values(setting), f"train.compile={is_compiled}"])
    train = recipe.train
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if setting.cuda else [ProfilerActivity.CPU]
    profiler = profile(activities=activities)
    times: dict[str, float] = {}

    class ProfileLastStep(TrainerCallback):
        """Profile only the last step, because the first steps also load kernels."""

        def on_step_begin(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == state.max_steps - 1:
                profiler.start()
                times["start"] = time.perf_counter()

        def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == state.max_steps:
                if setting.cuda:
                    torch.cuda.synchronize()
                times["end"] = time.perf_counter()
                profiler.stop()

    data = Texts(dual_rows(setting))
    batches = TrainingBatches(data, train.batch, train.epochs, 0, max_steps=train.max_steps)
    with tempfile.TemporaryDirectory() as name:
        start = random_bert(setting, Path(name) / "bert")
        trainer = trainer_of(recipe, data, batches, start, Path(name) / "states", setting.device)
        if train.compile:
            compile_transformers(trainer.model)
        trainer.add_callback(ProfileLastStep())
        trainer.train()
    step_seconds = times["end"] - times["start"]
    seconds_by_kind = dict.fromkeys([*_CATEGORIES, "other"], 0.0)
    for event in profiler.key_averages():
        # On a GPU, a kernel is an event of its own, and its time is counted once more in the operator that started it.
        if setting.cuda and (event.device_type == DeviceType.CPU or event.is_user_annotation):
            continue
        microseconds = event.self_device_time_total if setting.cuda else event.self_cpu_time_total
        seconds_by_kind[kind_of_kernel(event.key)] += microseconds / 1e6
    seconds_by_kind["no kernel runs"] = step_seconds - sum(seconds_by_kind.values())
    seconds_by_kind["whole step"] = step_seconds
    rows: Rows = []
    for kind, seconds in seconds_by_kind.items():
        share = round(seconds / step_seconds, 3)
        rows.append({"training": title, "kind": kind, "s": round(seconds, 3), "share": share})
    return rows


def kind_of_kernel(kernel_name: str) -> str:
    """Return the category of a kernel by words in its name. The categories are tried in their order."""
    name = kernel_name.lower()
    for kind, words in _CATEGORIES.items():
        if any(word in name for word in words):
            return kind
    return "other"


def training_speed(setting: Setting) -> Rows:
    """Measure official-de and e5-small with more tokens at once, and with compiled layers."""
    from gpu_common import passages_of
    from gpu_speed import Texts, product_rate, random_bert, train_speed

    from baselines.train.recipe import read_recipe

    rows = SavedRows()
    rate = product_rate(setting, "bf16" if setting.cuda else "fp32")
    data = Texts(dual_rows(setting))
    passages = passages_of(setting, setting.of(2_048, 16))
    real_rows = []
    for number, passage in enumerate(passages):
        real_rows.append({"query": passage[:16], "positive": passage, "negative_1": passages[-number - 1]})
    e5_values = ["model.pooling=", "model.similarity=", f"model.start={setting.model}"]
    e5_values += ["train.scale=50", f"train.batch={setting.of(512, 8)}"]
    with tempfile.TemporaryDirectory() as name:
        start = random_bert(setting, Path(name) / "bert")

        def measure(recipe_name: str, tokens: int, is_compiled: str) -> None:
            """Add the speed of a recipe: official-de on random rows, or de-bm25-neg from e5-small on real passages."""
            values = [f"train.mini_batch_tokens={setting.of(tokens, 256)}", f"train.compile={is_compiled}"]
            title = f"{recipe_name}, {tokens:,} tokens at once"
            if is_compiled == "true":
                title += ", compiled layers"
            if recipe_name == "official-de":
                recipe = read_recipe(recipe_name, [*dual_values(setting), *values])
                speed = train_speed(setting, rate, recipe, data, start)
            else:
                recipe = read_recipe(recipe_name, [*dual_values(setting), *e5_values, *values])
                speed = train_speed(setting, rate, recipe, Texts(real_rows), setting.model)
            rows.append({"training": title} | speed)

        for tokens in (131_072, 32_768):
            for is_compiled in ("true", "false"):
                measure("official-de", tokens, is_compiled)
                measure("de-bm25-neg", tokens, is_compiled)
    return rows


def tables(setting: Setting) -> Rows:
    """Train and evaluate the rows of Tables 5, 7, 8 and 9, in this order, until the time limit. Resumes.

    The first row is the cross-encoder on BM25's passages, which needs one training. Table 9 has a release of its own
    (``gpu_pack.py --crosslingual``). All trainings have one epoch.
    """
    reports_folder = setting.work / "card-reports"
    reports_folder.mkdir(parents=True, exist_ok=True)
    setting = replace(setting, settings=write_short_settings(setting.settings, setting.work / "card.toml"))
    deadline = time.monotonic() + setting.seconds - _REPORT_SECONDS

    # A setting of its own for each report, because Table 9 has another release.
    def report(numbers: list[int], table_setting: Setting, name: str = "", **options: str) -> bool:
        """Return True if the report of these tables is there, or was finished before the deadline.

        ``name`` is the report's file name without .json ("": made of ``numbers``). ``options`` are those of
        :func:`gpu.reproduce`.
        """
        name = name or f"seed0.tables{'-'.join(map(str, numbers))}"
        path = reports_folder / f"{name}.json"
        return path.exists() or gpu.reproduce(table_setting, 0, numbers, path, deadline, **options)

    is_finished = report([5], setting, "seed0.t5", row=_FIRST_ROW)
    chosen = _TABLES[:1] if setting.small else _TABLES
    # Every report also has the tables of the earlier reports, whose steps are finished. So the last report is complete.
    for count in range(1, len(chosen) + 1):
        is_finished = is_finished and report(list(chosen[:count]), setting)
    crosslingual = setting.release.with_name("crosslingual")
    has_table_9 = crosslingual.is_dir()
    if is_finished and has_table_9:
        is_finished = report([9], replace(setting, release=crosslingual), "seed0-xl.tables9", runs="crosslingual-runs")
    rows = SavedRows()
    for row in gpu.report_rows(reports_folder):
        rows.append(row)
    if not has_table_9:
        rows.append({"table": 9, "row": "not trained: the pack has no release for Table 9"})
    if not is_finished:
        raise RuntimeError("the time is over; call the script again")
    return rows


def write_short_settings(settings_path: Path, short_path: Path) -> Path:
    """Write settings of `reproduce` again, with trainings of one epoch. Return ``short_path``."""
    lines = settings_path.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("train.epochs")]
    lines.insert(lines.index('["*"]') + 1, "train.epochs = 1")
    short_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return short_path


STEPS: list[Step] = [
    (heads_in_fp32, 40),
    (device_scores, 60),
    (official_ce, 90),
    (unpadded_encoding, 120),
    (training_profile, 70),
    (training_speed, 160),
    (tables, 600),
]


def run_remaining(setting: Setting, out: Path, limit: float, small: bool) -> list[str]:
    """Run the steps that earlier calls have not finished. Return the names of failed or unfinished steps and checks.

    A step with an error is not finished. ``limit`` has the seconds of all calls together. With ``small``, a step has no
    limit of its own.
    """
    results_path = out / "results.json"
    stored: dict[str, Any] = {}
    if results_path.exists():
        stored = json.loads(results_path.read_text(encoding="utf-8"))
    machine_facts = stored.pop("machine", None) or gpu.about_machine(setting)
    used_seconds = sum(result["seconds"] for result in stored.values())
    for function, step_limit in STEPS:
        name = function.__name__
        earlier_seconds = stored.get(name, {}).get("seconds", 0.0)
        if name in stored and not stored[name]["error"]:
            print(f"{name}: finished by an earlier call", flush=True)
            continue
        seconds = limit - used_seconds if small else min(step_limit, limit - used_seconds - _REPORT_SECONDS)
        if seconds < 5:
            print(f"{name}: no time left", flush=True)
            stored.setdefault(name, {"rows": [], "error": "no time left", "seconds": 0.0})
            continue
        result = gpu.run_step(function, replace(setting, seconds=seconds), out / f"{name}.log", seconds)
        used_seconds += result["seconds"]
        # The budget counts the earlier tries of this step, too.
        result["seconds"] = round(result["seconds"] + earlier_seconds, 1)
        stored[name] = result
        gpu.write_results(out, machine_facts, stored)
        print(f"{name}: {result['seconds']} s {result['error']}", flush=True)
        if result["rows"]:
            print(gpu.table(result["rows"]), flush=True)
    failed = [name for name, result in stored.items() if result["error"]]
    for result in stored.values():
        failed += [row["check"] for row in result["rows"] if row.get("passed") is False]
    print(f"{out / 'results.md'}: {used_seconds:.0f} s used, failed or unfinished: {', '.join(failed) or 'none'}")
    return failed


def main(words: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    pack = Path("build/gpu-pack")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu (default: cuda:0)")
    parser.add_argument("--small", action="store_true", help="use tiny models and data, for tests without a GPU")
    parser.add_argument("--pack", type=Path, default=pack, help=f"output of gpu_pack.py (default: {pack})")
    parser.add_argument("--out", type=Path, default=gpu.WORK / "card", help=f"results (default: {gpu.WORK / 'card'})")
    parser.add_argument(
        "--limit", type=float, default=_LIMIT, help=f"seconds of all calls together (default: {_LIMIT})"
    )
    args = parser.parse_args(words)
    os.chdir(ROOT)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Without these variables, libraries would import JAX and TensorFlow if installed.
    os.environ["USE_JAX"] = "0"
    os.environ["USE_TF"] = "0"
    if args.small:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compilation takes minutes on a CPU
    gpu.install_wheels(args.pack)
    import gpu_checks  # noqa: F401 (imported once, before the steps fork)
    import gpu_speed  # noqa: F401

    if args.small:
        work = out / "small"
        setting = Setting(args.device, True, work / "model", work / "release", work / "settings.toml", work)
        if not (out / "input.json").exists():
            shutil.rmtree(work, ignore_errors=True)
            error = gpu.run_step(gpu.make_tiny, setting, out / "make_tiny.log", args.limit)["error"]
            if error:
                raise SystemExit(f"--small: {error}; see {out / 'make_tiny.log'}")
            write_json(out / "input.json", {"small": True})
    else:
        setting = replace(gpu.unpack(args.pack), device=args.device)
    return bool(run_remaining(setting, out, args.limit, args.small))


if __name__ == "__main__":
    sys.exit(main())
