"""Every verb that reads a release, on damaged releases: the output of the intact release, or one error line."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotating import judged_round
from commands import Done, run
from conftest import Once
from fuzzing import CASES, Reader, fuzz_and_count, loads
from hub_client import run_at
from hub_server import Hub
from releases import QUESTIONS, TEXTS, md5, raw_row, write_rows
from spoil import JSON, PARQUET
from test_fuzz_releases import sign
from whole_release import Rows, make_whole

from builders.store.layout import MANIFEST
from builders.store.runs import write_run

ENGLISH = {"北京冬天冷吗": "Is it cold", "饺子怎么煮": "How to boil"}
TORCH = ("encode", "search", "rerank", "match", "train")  # seconds each
HUB = ("publish", "push")
REPO = "org/name"
_VECTORS = "--release {here}/release --embeddings {here}/v.parquet"
# The command line of each verb. {here} is the folder of all inputs. `reproduce` runs these verbs.
VERBS = {
    **{
        f"export --format {form}": f"builders export --release {{here}}/release --format {form} --out {{here}}/out"
        for form in ("beir", "trec", "msmarco", "tevatron", "official")
    },
    "export --format rag": "builders export --release {here}/release --format rag --run {here}/dev.run"
    " --out {here}/out",
    "answers": "builders add answers --raw {here}/raw --release {here}/release --out {here}/out",
    "nano": "builders add samples --release {here}/release --nano --hard {here}/dev.run --extract --out {here}/out",
    "check": "builders check --release {here}/release --format json",
    "cmedqa": "builders add cmedqa --source {here}/cmedqa --release {here}/release --out {here}/out",
    "ccovid": "builders add ccovid --source {here}/ccovid --release {here}/release --out {here}/out --test-size 1",
    "crosslingual": "builders add crosslingual --source {here}/table.csv --release {here}/release --out {here}/out",
    "translations": "builders annotate translations export --release {here}/release --out {here}/out",
    "similar": "builders similar --release {here}/release --out {here}/out",
    "contamination": "builders similar --release {here}/release --against {here}/pairs.jsonl --format json",
    "restrain": f"builders add restrain {_VECTORS} --size 1 --out {{here}}/out",
    "resttest": f"builders add resttest {_VECTORS} --buckets 2 --out {{here}}/out",
    "publish": f"builders publish --release {{here}}/release --repo {REPO}",
    "annotate merge": "builders annotate merge --round {here}/round --release {here}/release --out {here}/out",
    "pool": "builders annotate pool select --release {here}/release --runs {here}/dev.run --scores {here}/other.run"
    " --scale none --out {here}/out",
    "relabel": "builders annotate relabel move --release {here}/release --scores {here}/train.run --scale none"
    " --out {here}/out",
    "bm25": "baselines bm25 --release {here}/release --out {here}/out --threads 1",
    "mine": "baselines mine --release {here}/release --run {here}/train.run --out {here}/out",
    "evaluate": "baselines evaluate --release {here}/release {here}/dev.run",
    "evaluate --answers": "baselines evaluate --release {here}/release --answers --by question_type {here}/dev.run",
    "compare": "baselines compare --release {here}/release {here}/dev.run {here}/other.run --format json",
    "fuse": "baselines fuse --release {here}/release --method weighted --tune dev --tune-on-these --weights {here}/out"
    " --out {here}/out.run {here}/dev.run {here}/other.run",
    "show": "baselines show --release {here}/release {here}/dev.run",
    "errors holes": "baselines errors holes --release {here}/release {here}/dev.run",
    "errors duplicates": "baselines errors duplicates --release {here}/release {here}/dev.run",
    "errors draw": "baselines errors draw --release {here}/release --top-k 3 --sample 1 --format json {here}/dev.run",
    "encode": "baselines encode --release {here}/release --model {here}/dual --device cpu --out {here}/out",
    "search": "baselines search --release {here}/release --model {here}/dual --passages {here}/vectors --device cpu"
    " --out {here}/out",
    "rerank": "baselines rerank --release {here}/release --run {here}/dev.run --model {here}/cross --device cpu"
    " --out {here}/out",
    "match": "baselines match --release {here}/release --model {here}/cross --encoder {here}/dual --device cpu"
    " --recall-sample 1 --out {here}/out",
    "train": "baselines train de-bm25-neg-scratch --release {here}/release --start {here}/dual-bert --device cpu"
    " --set train.batch=2 --set train.max_steps=2 --set data.passage_length=24 --set data.query_length=12"
    " --set data.negatives=release --set data.negatives_per_positive=1 --out {here}/out",
    "push": f"baselines push --model {{here}}/checkpoint --repo {REPO} --release {{here}}/release"
    " --run {here}/dev.run",
}
# Files that depend on more than the tables.
_ABOUT = {"EXPORT", MANIFEST, "README.md", "stats.json", "training.json"}


RAW = raw_row(1, QUESTIONS["dev"][0], [TEXTS[4:]], [TEXTS[4], "十五天"]) | {
    **{"question_type": "ENTITY", "entity_answers": [["十五天"], []], "yesno_answers": ["", "Yes"]}
}


def _add_answers(rows: Rows) -> None:
    names = ("answers", "question_type", "fact_or_opinion", "entity_answers", "yesno_answers")
    own = {name: RAW[name] for name in names} | {"query_id": md5(RAW["question"]), "source": "search"}
    rows["answers", "dev"] = [own | {"answer_passages": [[md5(TEXTS[4])], []]}]


def make(folder: Path) -> None:
    folder.mkdir()
    from test_fuzz_models import _checkpoint
    from test_fuzz_sources import _ccovid, _cmedqa

    make_whole(folder / "release", _add_answers)
    write_rows(folder / "raw" / "search.dev.json", [RAW])
    (folder / "checkpoint").mkdir()
    _checkpoint(folder / "checkpoint")
    for name, write in (("cmedqa", _cmedqa), ("ccovid", _ccovid)):
        (folder / name).mkdir()
        write(folder / name)
    (folder / "table.csv").write_text("".join(f"{zh},{en}\n" for zh, en in ENGLISH.items()), encoding="utf-8")
    pair = {"query": QUESTIONS["dev"][0], "pos": TEXTS[4:]}
    (folder / "pairs.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    ids = [md5(text) for text in TEXTS]
    for name, split, order in (("train", "train", 1), ("dev", "dev", 1), ("other", "dev", -1)):
        hits = [(passage, 1 / rank) for rank, passage in enumerate(ids[::order], 1)]
        write_run(folder / f"{name}.run", [(md5(question), hits) for question in QUESTIONS[split]])
    asked = [question for questions in QUESTIONS.values() for question in questions]
    labels = {(md5(QUESTIONS["dev"][0]), ids[0]): 1, (md5(QUESTIONS["dev"][1]), ids[5]): 0}
    judged_round(folder / "round", folder / "release", {"dev-001": ("accepted", labels)})
    vectors = np.random.default_rng(0).normal(size=(len(asked), 4)).tolist()
    table = pa.table({"_id": [md5(question) for question in asked], "embedding": vectors})
    pq.write_table(table, folder / "v.parquet")


def make_with_models(folder: Path) -> None:
    from tiny_models import write_cross, write_dual

    make(folder)
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    words = ["--release", folder / "release", "--model", folder / "dual", "--device", "cpu"]
    run("baselines", "encode", *words, "--out", folder / "vectors")


def _listed(folder: Path) -> list[list[Any]]:
    try:
        files = loads((folder / "release" / MANIFEST).read_text(encoding="utf-8-sig"))["files"]
        return sorted([entry["path"], entry["bytes"], entry["rows"], entry["sha256"]] for entry in files)
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _files(folder: Path) -> dict[str, bytes]:
    outs = [path for path in folder.glob("out*") if path.suffix != ".training"]
    files = [path for out in outs for path in (out.rglob("*") if out.is_dir() else [out]) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name not in _ABOUT}


def _run_at_a_hub(folder: Path, program: str, words: list[str]) -> tuple[Done, dict[str, bytes]]:
    with Hub() as hub:
        repo = hub.create(REPO, "model" if program == "baselines" else "dataset")
        before = dict(repo.files)
        done = run_at(hub, folder.parent / "cache" / "hub", program, *words, code=None)
        sent = {path: content for path, content in repo.files.items() if before.get(path) != content}
    return done, {path: content for path, content in sent.items() if path not in _ABOUT}


def _reader(verb: str, hostile: bool, good: Path) -> Reader:
    program, name, *words = VERBS[verb].split()

    def read(folder: Path) -> Any:
        given = [name, "--quiet", *(word.format(here=folder) for word in words)]
        done, sent = _run_at_a_hub(folder, program, given) if name in HUB else (run(program, *given, code=None), {})
        if done.code and not (name == "check" and done.stdout):  # `check` prints its findings
            assert not sent
            return done
        said = "" if done.code or name in HUB else done.stdout  # these verbs print commits
        found = (said, _files(folder) | sent), _listed(folder)
        for other in ("out.run", "out.parquet", "out.manifest.json"):
            (folder / other).unlink(missing_ok=True)
        shutil.rmtree(folder / "out.training", ignore_errors=True)
        return found

    def right(found: Any, good: Any, _: Path) -> bool:
        return (name == "check" and not found[0][0]) or found[1] != good[1] or found[0] == good[0]

    return Reader(
        name=f"{verb}, on a {'hostile' if hostile else 'damaged'} release",
        reaches=_function(program, name, words),
        make=lambda folder: shutil.copytree(good, folder, dirs_exist_ok=True),
        spoils={"release/manifest.json": JSON, "release/stats.json": JSON, "release/*/*.parquet": PARQUET},
        read=read,
        right=(lambda *_: True) if hostile else right,
        mend=sign if hostile else lambda _: None,
        share=0.005 if verb in TORCH else 0.02,
        names_files=name != "export",  # an error names the exported file
    )


def _function(program: str, name: str, words: list[str]) -> str:
    """Return "module:function" of a verb, or of the step that the words begin with."""
    target: str = importlib.import_module(f"{program}.__main__").VERBS[name]
    if ":" not in target:
        target = importlib.import_module(target).STEPS[words[0]]
    return target


READERS = [
    pytest.param(
        (verb, hostile),
        id=f"{verb}-{'hostile' if hostile else 'damaged'}",
        marks=pytest.mark.skipif(verb in TORCH and not CASES, reason="takes minutes: make test-slow"),
    )
    for verb in VERBS
    for hostile in (False, True)
]


@pytest.mark.usefixtures("equal_figures_are_drawn_once")
@pytest.mark.parametrize("verb", READERS)
def test_a_damaged_release_gives_the_same_output_or_one_error(
    verb: tuple[str, bool], once: Once, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good = once("verbs-with-models", make_with_models) if verb[0] in TORCH else once("verbs", make)
    fuzz_and_count(_reader(*verb, good), tmp_path, record_property)
