"""Wrong calls: each ends with its exit code and an error that names the option, the value and what was expected.

Wrong usage has exit code 2 and one line on stderr, which names the command and what is wrong. The rest of the wording
is free. A wrong input has exit code 1 and one line, which is compared exactly.
"""

import os
from pathlib import Path

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5

from builders.store.runs import write_run

# The words of a call in a folder with the release R, the run N, the text file FILE and the folder FOLDER, and parts of
# the error.
USAGE: list[tuple[str, tuple[str, ...]]] = [
    # verbs and steps
    ("builders relase", ("'relase'", "did you mean release?")),
    ("baselines serch", ("'serch'", "did you mean search?")),
    ("baselines nothing", ("'nothing'", "`python -m baselines` lists all verbs")),
    ("builders add", ("add", "cmedqa", "ccovid", "crosslingual", "stress", "restrain", "samples")),
    ("builders add msmarco --release R", ("msmarco", "cmedqa", "samples")),
    ("builders annotate poll", ("poll", "pool", "export", "translations")),
    ("builders annotate translations", ("--release", "--out")),
    # options that no verb has, and options that must not be abbreviated
    ("baselines bm25 --release R --out O --analyser words", ("--analyser",)),
    ("baselines bm25 --rel R --out O", ("--rel",)),
    ("baselines bm25 --release R --out O --k 3", ("--k",)),
    ("baselines bm25 --release R --out O extra", ("extra",)),
    ("builders check --release R --out O", ("--out",)),
    ("builders check R", ("unexpected argument 'R'",)),
    ("builders add samples --release R --size 40 --out O", ("--size",)),
    # missing options, arguments and values
    ("baselines bm25 --out O", ("--release",)),
    ("builders export", ("missing --release, --format, --out",)),
    ("baselines bm25 --release R --out", ("--out",)),
    ("baselines run --release R", ("MODEL",)),
    ("baselines evaluate --release R", ("RUN",)),
    ("baselines train", ("expected RECIPE and --out CKPT; `train --list` prints the recipes",)),
    ("baselines push --model M", ("--repo",)),
    ("builders annotate pool select --release R", ("--runs", "--out")),
    ("baselines search --release R --out O --passages P", ("--model", "--queries")),
    ("baselines match --model M --out O", ("--release", "--calibrate")),
    ("builders official --out O", ("--archive", "--list", "--copy")),
    ("builders similar --release R", ("--out", "--against")),
    # numbers
    ("baselines bm25 --release R --out O --top-k ten", ("--top-k", "ten")),
    ("baselines bm25 --release R --out O --top-k 2.5", ("--top-k", "2.5")),
    ("baselines bm25 --release R --out O --top-k 0", ("--top-k", "expected a whole number of at least 1, found 0")),
    ("baselines bm25 --release R --out O --top-k=-3", ("--top-k", "expected a whole number of at least 1, found -3")),
    ("baselines bm25 --release R --out O --b 1.5", ("--b", "expected a number from 0 to 1, found 1.5")),
    ("baselines bm25 --release R --out O --b nan", ("--b", "expected a number from 0 to 1, found nan")),
    ("baselines bm25 --release R --out O --k1 inf", ("--k1", "expected a number of at least 0, found inf")),
    ("baselines mine --release R --run N --out O --max-score inf", ("--max-score", "expected a number, found inf")),
    ("baselines mine --release R --run N --out O --margin big", ("--margin", "big")),
    ("baselines encode --release R --model M --out O --batch-tokens 1e3", ("--batch-tokens", "1e3")),
    (
        "baselines rerank --release R --run N --model M --out O --truncate-dim 0",
        ("--truncate-dim", "expected a whole number of at least 1, found 0"),
    ),
    (
        "baselines match --release R --model M --out O --precision 2",
        ("--precision", "expected a number from 0 to 1, found 2"),
    ),
    ("baselines reproduce --table four", ("--table", "four")),
    (
        "builders release --raw R --out O --min-chars -1",
        ("--min-chars", "expected a whole number of at least 1, found -1"),
    ),
    ("builders similar --release R --out O --threshold 2", ("--threshold", "expected a number from 0 to 1, found 2")),
    ("builders add samples --release R --sizes 40 0 --out O", ("--sizes", "a number of at least 1", "found '0'")),
    # choices and sets
    (
        "baselines bm25 --release R --out O --analyzer letters",
        ("--analyzer", "letters", "words", "characters", "bigrams", "both"),
    ),
    ("baselines bm25 --release R --out O --set msmarco", ("--set", "msmarco", "main", "cmedqa", "ccovid")),
    ("builders export --release R --format beir --out O --set msmarco", ("--set", "msmarco", "main", "restrain-SIZE-")),
    ("baselines rerank --release R --run N --model M --out O --dtype fp8", ("--dtype", "fp8", "fp32", "bf16")),
    ("builders export --release R --format csv --out O", ("--format", "csv", "beir", "trec", "rag")),
    ("builders check --release R --format xml", ("--format", "xml", "text", "json", "markdown", "csv")),
    ("builders check --release R --accept stats manifest", ("--accept", "manifest", "ids-not-md5", "stats")),
    # texts with a form of their own
    ("builders publish --release R --repo name", ("--repo", "expected ORG/NAME, found 'name'")),
    ("builders publish --release R --repo ORG/NAME --scores dev", ("--scores", "expected SPLIT=FILE, found 'dev'")),
    ("baselines push --model M --repo name", ("--repo", "expected ORG/NAME", "name")),
    # options that exclude each other
    ("baselines search --release R --out O --passages P --model M --queries Q", ("--queries", "--model")),
    (
        "baselines mine --release R --run N --out O --cross-encoder M --bi-encoder M",
        ("--bi-encoder", "--cross-encoder"),
    ),
    ("baselines bm25 --release R --out O --split dev --tune dev", ("--tune dev: tuning on the searched questions",)),
    (
        "baselines fuse --release R --tune dev --out O --weights O N N",
        ("--out and --weights name the same file O",),
    ),
    ("baselines compare --release R N N --name a --name a", ("--name a: two systems have this name",)),
    ("baselines evaluate --qrels FILE --set cmedqa N", ("--set cmedqa names a set of a release; expected --release",)),
    (
        "baselines encode --release R --model M --out O --store int8 --reuse O",
        ("--reuse and --out name the same directory O",),
    ),
    ("baselines encode --release R --model M --out R/embeddings", ("--out R/embeddings is inside the release R",)),
    ("builders add stress --release R --kind swap --out R/stress", ("--out R/stress is inside the release R",)),
    ("baselines bm25 --release R --out O --tune train --k1 2", ("--k1 and --tune exclude each other",)),
    ("baselines show --serve N", ("RUN and --serve exclude each other",)),
    ("builders official --list --out O", ("--out and --list exclude each other",)),
    # options that need another option
    ("baselines bm25 --release R --out O --engine elasticsearch", ("--engine elasticsearch needs --address URL",)),
    ("baselines bm25 --release R --out O --ca-certs FILE", ("--ca-certs needs --engine elasticsearch",)),
    (
        "baselines mine --release R --run N --out O --cross-encoder M",
        ("--cross-encoder and --bi-encoder need --denoise, --margin, --relative-margin or --max-score",),
    ),
    (
        "baselines mine --release R --run N --out O --revision main",
        ("--revision needs --cross-encoder or --bi-encoder",),
    ),
    ("baselines encode --release R --model M --out O --split dev", ("--split needs --queries",)),
    *[
        (f"baselines mine --release R --run N --out O {option}", ("needs --cross-encoder or --bi-encoder",))
        for option in ("--device cpu", "--dtype fp32", "--backend openvino", "--batch-tokens 9", "--tokenizers 1")
    ],
    ("baselines fuse --out O N N --tune-runs N N", ("--tune-runs needs --tune",)),
    ("baselines fuse --release R --out O N N", ("--release needs --tune",)),
    ("baselines fuse --set cmedqa --out O N N", ("--set needs --tune",)),
    ("builders similar --release R --out R", ("--out and --release name the same directory R",)),
    ("builders similar --release R --out ./FOLDER/../R", ("--out and --release name the same directory",)),
    ("builders similar --release R --against FILE --questions R", ("--questions and --release name the same",)),
    ("baselines evaluate --release R --answers --ties expected N", ("--answers and --ties expected exclude each",)),
    ("baselines errors holes --release R --ties expected N", ("--ties: expected one of listed, id",)),
    ("baselines evaluate N --release R --budget 5", ("--budget needs --answers",)),
    (
        "baselines evaluate N --release R --answers --budget 256 0",
        ("--budget", "expected a whole number of at least 1", "found 0"),
    ),
    (
        "baselines errors no-answer --release R --false-answers 1 N",
        ("--false-answers", "expected a number from 0 to 0.99, found 1"),
    ),
    ("baselines errors no-answer --release R --pruned N N N", ("--pruned belongs to one run", "found 2")),
    ("baselines errors no-answer --release R --write-pruned O N N", ("--write-pruned belongs to one run", "found 2")),
    (
        "baselines errors no-answer --release R --list O --write-pruned O N",
        ("--list and --write-pruned name the same file O",),
    ),
    (
        "builders release --raw R --out O --whole-documents --min-chars 64",
        ("--min-chars and --whole-documents exclude each other",),
    ),
    ("baselines errors --tally R", ("no step '--tally'; expected one of draw, tally, holes, duplicates",)),
    ("baselines show --port 7000 N", ("--port needs --serve",)),
    ("builders annotate relabel candidates --release R --out O --agree all", ("--agree needs action move",)),
    ("builders export --release R --format msmarco --out O --run N", ("--run needs --format beir, trec, official",)),
    ("builders similar --release R --out O --threshold 0.5", ("--threshold needs --scores",)),
    ("builders similar --release R --out O --by exact --ngram 3", ("--ngram needs --by n-gram",)),
    # the number of runs
    ("baselines fuse --out O N", ("expected two runs or more",)),
    ("baselines compare --release R N", ("expected 2 to 25 runs, found 1",)),
]
NO_RELEASE = "not a release directory (no manifest.json); `python -m builders release --raw PATH --out DIR` makes one"
INPUT = {
    # values that the verb itself checks
    "baselines train de-bm25-neg-scratch --release R --out O --set train.batch": (
        "--set train.batch: expected SECTION.KEY=VALUE, for example train.batch=64"
    ),
    "baselines bm25 --release R --out O --split validation": (
        "R: has no config 'queries' with a split 'validation'; it has corpus/corpus, dev/dev, qrels/dev, qrels/train, "
        "queries/dev, queries/test, queries/train, test/test, train/train"
    ),
    # files
    "baselines bm25 --release R --out R/manifest.json": (
        "R/manifest.json: --out is inside FOLDER_OF_TEST/R, which this command reads; choose another place"
    ),
    "builders check --release R --figures R/figures": (
        "R/figures/stats.json: --figures is inside FOLDER_OF_TEST/R, which this command reads; choose another place"
    ),
    "baselines fuse --out N N FILE": "N: is both a file to read and --out; expected different files",
    "baselines errors no-answer --release R --list N N": (
        "N: is both a file to read and --list; expected different files"
    ),
    "baselines errors no-answer --release R --write-pruned FOLDER N": (
        "FOLDER: is a directory; expected the name of a file"
    ),
    "baselines errors no-answer --release R N": (
        "N: is too short for 1 of 2 questions: fewer than two passages remain without those that answer the question; "
        "search with --top-k 3 or more"
    ),
    "builders release --raw MISSING --out O": "MISSING: does not exist",
    "builders check --release MISSING": f"MISSING: {NO_RELEASE}",
    "builders check --release FILE": f"FILE: {NO_RELEASE}",
    "baselines bm25 --release FOLDER --out O": f"FOLDER: {NO_RELEASE}",
    "baselines evaluate --release R MISSING": "MISSING: cannot be read (No such file or directory)",
    "baselines evaluate --release R FOLDER": "FOLDER: cannot be read (Is a directory)",
    "baselines bm25 --release R --out FOLDER": "FOLDER: is a directory; expected the name of a file",
    "baselines evaluate --release R FILE": (
        "FILE:1: expected 6 columns (query-id Q0 corpus-id rank score tag), found 1; a run may also be MS MARCO's TSV "
        "(query-id, corpus-id, rank), Parquet, or JSON: {query id: {passage id: score}} or {query id: [passage ids, "
        "best first]}"
    ),
    # Nothing is asked of the hub for a set that the release lacks.
    "baselines run org/name --release R --set cmedqa --split test --out O": (
        "R: has no config 'cmedqa-corpus' with a split 'corpus'; it has corpus/corpus, dev/dev, qrels/dev, "
        "qrels/train, queries/dev, queries/test, queries/train, test/test, train/train"
    ),
    "builders official --archive MISSING --out O": (
        "MISSING: cannot be read (No such file or directory); expected a directory, a tar or a tar.gz"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    make_release(folder / "R")
    write_run(folder / "N", [(md5(QUESTIONS["dev"][0]), [(md5(TEXTS[4]), 1.0)])])
    (folder / "FILE").write_text("text\n")
    (folder / "FOLDER").mkdir()
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(("call", "parts"), USAGE, ids=[call for call, _ in USAGE])
def test_wrong_usage_is_one_line(call: str, parts: tuple[str, ...]) -> None:
    program, *words = call.split()
    done = run(program, words, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: python -m {program}")
    missing = [part for part in parts if part not in line]
    assert not missing, f"{missing} not in: {line}"
    assert done.stdout == "" and not Path("O").exists()


@pytest.mark.parametrize("call", INPUT)
def test_a_wrong_input_is_one_line(call: str) -> None:
    program, *words = call.split()
    done = run(program, words, code=1)
    assert done.stderr == f"error: {INPUT[call].replace('FOLDER_OF_TEST', os.getcwd())}\n"
    assert done.stdout == "" and not Path("O").exists()
