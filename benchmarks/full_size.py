"""Run every verb once on a collection of the paper's size, and measure seconds and memory.

The collection has real text and made-up questions (made_up_collection.py). Every verb runs in a new process, alone.
Wall seconds include the start of Python. Processor seconds and memory include child processes. Memory is sampled twice
a second: "memory" is the largest sum of the resident sets, with pages that several processes share counted for each of
them, and with pages of mapped files, which the system can drop. "without files" is the largest sum without these pages.

The results of finished verbs are in OUT/costs, so a call with the same options continues after the last finished verb.
An interrupted verb resumes, too, and its row is then marked: it lacks the costs of the interrupted call. A larger
collection is preceded by a small one, which is not measured: it fills Numba's cache of compiled code. Caches of the
project are in OUT/cache, not in the user's cache.

Examples:

  python benchmarks/full_size.py --text NEWS --out build/full-size
  python benchmarks/full_size.py --text NEWS --out build/part --passages 200000 --queries 8640
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, machine, memory, parser_of, write_json
from made_up_collection import read_sentences, write_collection
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import FixedLength
from transformers import PreTrainedTokenizerFast

from baselines.retrieve.reading_checks import SENTENCE
from builders.core.tables import markdown_table

PASSAGES, QUERIES = 8_096_668, 86_395  # Table 3: all passages, training questions
_SMALL_PASSAGES, _SMALL_QUERIES = 600, 20
_SAMPLING_SECONDS = 0.5
_GRACE_SECONDS = 5  # for a verb that got the same signal as this process
_MOST_CHARACTERS = 60_000_000  # of the source texts: 1 GB of memory as Python's strings
_PASSAGES_PER_WORD_LIST = 20_000  # passages whose characters the models know
_PAIRS = 20_000  # pairs of characters that the static model knows
_DIMENSIONS = 256
# Verbs with code that Numba compiles at its first call.
_COMPILED = ("official", "similar", "bm25, index and dev", "bm25, train", "mine")
_LOAD = """
import sys
from dureader_retrieval import load_dataset
print(load_dataset("corpus", data_dir="release", split="corpus", cache_dir="datasets"))
"""


@dataclass(frozen=True)
class MeasuredVerb:
    """A command that is measured once.

    Attributes:
        name: name in the table, and of the file with the costs.
        words: the command's words after the interpreter. Paths are relative to the folder --out.
        temporary: an output that is removed after the measurement, to save disk space ("": none).
    """

    name: str
    words: tuple[str, ...]
    temporary: str = ""


def builders(words: str) -> tuple[str, ...]:
    """Return the words of a command of ``builders``."""
    return ("-m", "builders", *words.split())


def baselines(words: str) -> tuple[str, ...]:
    """Return the words of a command of ``baselines``."""
    return ("-m", "baselines", *words.split())


VERBS = [
    MeasuredVerb("official", builders("official --archive archive --out release"), "archive"),
    MeasuredVerb("check", builders("check --release release --format json")),
    MeasuredVerb("load_dataset, corpus", ("-c", _LOAD), "datasets"),
    MeasuredVerb(
        "similar", builders("similar --release release --by exact normalised n-gram --out similar"), "similar"
    ),
    MeasuredVerb("export beir", builders("export --release release --format beir --out beir"), "beir"),
    MeasuredVerb("export official", builders("export --release release --format official --out files"), "files"),
    MeasuredVerb(
        "bm25, index and dev", baselines("bm25 --release release --split dev --index index --out bm25.dev.run.gz")
    ),
    MeasuredVerb(
        "bm25, train", baselines("bm25 --release release --split train --index index --out bm25.train.run.gz")
    ),
    MeasuredVerb("mine", baselines("mine --release release --run bm25.train.run.gz --out negatives.jsonl.gz")),
    MeasuredVerb(
        "add samples",
        builders("add samples --release release --sizes {tenth} --hard bm25.dev.run.gz --out samples"),
        "samples",
    ),
    MeasuredVerb(
        "encode, a static model", baselines("encode --release release --model static --device cpu --out vectors")
    ),
    MeasuredVerb(
        "search",
        baselines("search --release release --model static --passages vectors --device cpu --out dense.dev.run.gz"),
    ),
    MeasuredVerb(
        "run --over, a static model",
        baselines(
            "run static --release release --over bm25.dev.run.gz --device cpu --index over --out over.dev.run.gz"
        ),
    ),
    MeasuredVerb(
        "rerank, a tiny model",
        baselines(
            "rerank --release release --run bm25.dev.run.gz --model cross --top-k 10 --device cpu --out ce.dev.run.gz"
        ),
    ),
    MeasuredVerb("fuse", baselines("fuse bm25.dev.run.gz dense.dev.run.gz --out fused.dev.run.gz")),
    MeasuredVerb("match", baselines("match --release release --model static --device cpu --out match.run")),
    MeasuredVerb("evaluate", baselines("evaluate --release release bm25.dev.run.gz dense.dev.run.gz --format json")),
    MeasuredVerb("compare", baselines("compare --release release bm25.dev.run.gz dense.dev.run.gz --format json")),
    MeasuredVerb("errors holes", baselines("errors holes --release release bm25.dev.run.gz --format json")),
    MeasuredVerb("errors duplicates", baselines("errors duplicates --release release bm25.dev.run.gz --format json")),
    MeasuredVerb(
        "errors stages", baselines("errors stages --release release bm25.dev.run.gz ce.dev.run.gz --format json")
    ),
    MeasuredVerb(
        "annotate pool",
        builders(
            "annotate pool candidates --release release --runs bm25.dev.run.gz dense.dev.run.gz --out pool.run.gz"
        ),
    ),
    MeasuredVerb("show", baselines("show --release release bm25.dev.run.gz")),
    MeasuredVerb(
        "train, two steps of a tiny model",
        baselines(
            "train de-bm25-neg-scratch --release release --negatives negatives.jsonl.gz --start dual --device cpu "
            "--cache cache --set train.max_steps=2 --set train.batch=32 --set train.evaluations=0 --set train.saves=0 "
            "--set model.similarity= --set model.pooling= --out model"
        ),
    ),
    MeasuredVerb("publish --dry-run", builders("publish --release release --repo a/b --dry-run")),
]


def make_models(out: Path) -> None:
    """Write a static model, a tiny dual-encoder and a tiny cross-encoder with random weights."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tiny_models import write_cross, write_dual

    texts = []
    with open(out / "archive" / "passage_collection.json", encoding="utf-8") as file:
        for _, line in zip(range(_PASSAGES_PER_WORD_LIST), file, strict=False):
            texts.append(json.loads(line)["paragraph_text"])
    write_cross(out / "cross", texts=texts)
    write_dual(out / "dual", texts=texts)
    torch.manual_seed(0)
    module = StaticEmbedding(pair_tokenizer(texts), embedding_dim=_DIMENSIONS)
    SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(out / "static"))


def pair_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that cuts a text into pairs of characters and knows the most frequent pairs of ``texts``.

    BERT's tokenizer needs three times as long, an hour for the paper's collection on two cores.
    """
    counts: Counter[str] = Counter()
    for text in [*texts, SENTENCE]:  # a model that knows nothing of this sentence is refused
        counts.update(text[start : start + 2] for start in range(0, len(text), 2))
    vocabulary = {"[UNK]": 0}
    for pair, _ in counts.most_common(_PAIRS):
        vocabulary[pair] = len(vocabulary)
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = FixedLength(length=2)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def prepare(out: Path, text_paths: list[Path], passage_count: int, query_count: int) -> None:
    """Write the archive and the models. The last file that is written says that both are complete."""
    marker = out / "input.json"
    values = {"passages": passage_count, "queries": query_count}
    if marker.exists():
        earlier_values = json.loads(marker.read_text(encoding="utf-8"))
        if {name: earlier_values[name] for name in values} != values:
            raise SystemExit(f"{out}: has a collection of another size; choose another --out")
        return
    out.mkdir(parents=True, exist_ok=True)
    start_time = time.perf_counter()
    sentences = read_sentences(text_paths, _MOST_CHARACTERS)
    questions = write_collection(out / "archive", sentences, passage_count, query_count)
    make_models(out)
    if passage_count > _SMALL_PASSAGES:
        warm_up(out, text_paths)
    seconds = round(time.perf_counter() - start_time)
    print(f"wrote {passage_count:,} passages and the questions {questions} in {seconds} s", flush=True)
    write_json(marker, values | {"questions": questions, "seconds": seconds})


def warm_up(out: Path, text_paths: list[Path]) -> None:
    """Run the verbs with compiled code on a small collection. They are not measured."""
    folder = out / "warm"
    sentences = read_sentences(text_paths, _MOST_CHARACTERS // 100)
    write_collection(folder / "archive", sentences, _SMALL_PASSAGES, _SMALL_QUERIES)
    for verb in VERBS:
        if verb.name in _COMPILED:
            subprocess.run(
                [sys.executable, *verb.words], cwd=folder, env=environment_of(folder), check=True, capture_output=True
            )
    shutil.rmtree(folder)


def environment_of(out: Path) -> dict[str, str]:
    """Return the environment of the verbs, with the project on the path and a cache of its own."""
    return os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(out / "cache")}


def measure(verb: MeasuredVerb, out: Path, tenth: int) -> dict[str, Any]:
    """Run a verb, and return its costs. Exit if the verb fails.

    ``tenth`` is a tenth of the number of passages, the size of a sample: it replaces "{tenth}" in the verb's words.
    """
    log_folder = out / "logs"
    log_folder.mkdir(exist_ok=True)
    log_path = log_folder / f"{file_name(verb)}.log"
    words = [word.format(tenth=tenth) if "{tenth}" in word else word for word in verb.words]
    peaks = {"Rss": 0, "Pss_Anon": 0}
    times_before = os.times()
    start_time = time.perf_counter()
    was_interrupted = log_path.exists()  # an earlier call began the verb, and has not stored its costs
    with open(log_path, "w", encoding="utf-8") as log_file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=out,
            stdout=log_file,
            stderr=log_file,
            env=environment_of(out),
        )
        try:
            while process.poll() is None:
                for field, peak in peaks.items():
                    peaks[field] = max(peak, memory(process.pid, field))
                time.sleep(_SAMPLING_SECONDS)
        except BaseException:
            # Ctrl-C reaches the verb, too, which then saves its state. A second signal would end it at once.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            process.terminate()
            process.wait()
            raise
    seconds = time.perf_counter() - start_time
    times_after = os.times()
    if process.returncode:
        raise SystemExit(f"{verb.name}: exit code {process.returncode}; see {log_path}")
    user_seconds = times_after.children_user - times_before.children_user
    system_seconds = times_after.children_system - times_before.children_system
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(user_seconds + system_seconds, 1),
        "memory_gb": round(peaks["Rss"] / 1e9, 2),
        "memory_without_files_gb": round(peaks["Pss_Anon"] / 1e9, 2),
        "was_interrupted": was_interrupted,
    }


def file_name(verb: MeasuredVerb) -> str:
    """Return the verb's name as the name of a file."""
    return verb.name.replace(",", "").replace(" ", "-")


def run_all(verbs: list[MeasuredVerb], out: Path, tenth: int) -> dict[str, dict[str, Any]]:
    """Measure the verbs without stored costs, and return the costs of all, by the verb's name."""
    costs_folder = out / "costs"
    costs_folder.mkdir(exist_ok=True)
    costs_by_verb = {}
    for verb in verbs:
        costs_path = costs_folder / f"{file_name(verb)}.json"
        if not costs_path.exists():
            costs = measure(verb, out, tenth)
            if verb.temporary:
                shutil.rmtree(out / verb.temporary, ignore_errors=True)
            new_path = costs_path.with_suffix(".new")
            write_json(new_path, costs)
            new_path.replace(costs_path)
            print(f"{verb.name}: {costs}", flush=True)
        costs_by_verb[verb.name] = json.loads(costs_path.read_text(encoding="utf-8"))
    return costs_by_verb


def table(costs_by_verb: dict[str, dict[str, Any]]) -> str:
    """Return the table for the documentation."""
    rows = []
    for name, costs in costs_by_verb.items():
        resumed = " (resumed)" if costs["was_interrupted"] else ""
        cells = [f"{costs['seconds']:,.0f}", f"{costs['processor_seconds']:,.0f}"]
        cells += [f"{costs['memory_gb']:.1f}", f"{costs['memory_without_files_gb']:.1f}"]
        rows.append([f"{name}{resumed}", *cells])
    return markdown_table(["verb", "seconds", "CPU seconds", "memory, GB", "without files, GB"], rows)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--text", nargs="+", type=Path, required=True, metavar="PATH", help="text files or folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for collection, outputs and costs")
    parser.add_argument("--passages", type=int, help=f"passages (default: {PASSAGES:,}, the paper's number)")
    parser.add_argument(
        "--queries", type=int, help=f"training questions (default: {QUERIES:,}); dev, test: in proportion"
    )
    parser.add_argument("--small", action="store_true", help="a few hundred passages, for tests")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these verbs, by the names of the table")
    args = parser.parse_args()
    passage_count = args.passages or (_SMALL_PASSAGES if args.small else PASSAGES)
    query_count = args.queries or (_SMALL_QUERIES if args.small else QUERIES)
    out = args.out.resolve()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = [verb.name for verb in VERBS]
    for name in args.only or []:
        if name not in names:
            parser.error(f"--only {name}: expected one of {', '.join(names)}")
    verbs = [verb for verb in VERBS if not args.only or verb.name in args.only]

    prepare(out, args.text, passage_count, query_count)
    costs_by_verb = run_all(verbs, out, tenth=max(100, passage_count // 10))
    facts = machine("pyarrow", "numpy", "numba", "duckdb") | {"passages": passage_count, "queries": query_count}
    write_json(out / "results.json", {"machine": facts, "verbs": costs_by_verb})
    text = table(costs_by_verb)
    (out / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
