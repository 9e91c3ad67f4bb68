"""Every verb that reads a release, on damaged releases: the output of the intact release, or one error line."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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

from baselines.core.run_costs import TIMED_KEYS
from builders.store.layout import MANIFEST
from builders.store.runs import write_run

ENGLISH = {"北京冬天冷吗": "Is it cold", "饺子怎么煮": "How to boil"}
TORCH = ("encode", "search", "rerank", "match", "train")  # seconds each
HUB = ("publish", "push")
REPO = "org/name"
_VECTOR_OPTIONS = "--release {here}/release --embeddings {here}/v.parquet"
# The command line of each verb. {here} is the folder of all inputs. `reproduce` runs these verbs.
VERBS = {
    "export --format beir": "builders export --release {here}/release --format beir --out {here}/out",
    "export --format trec": "builders export --release {here}/release --format trec --out {here}/out",
    "export --format msmarco": "builders export --release {here}/release --format msmarco --out {here}/out",
    "export --format tevatron": "builders export --release {here}/release --format tevatron --out {here}/out",
    "export --format official": "builders export --release {here}/release --format official --out {here}/out",
    "export --format rag": "builders export --release {here}/release --format rag --run {here}/dev.run"
    " --out {here}/out",
    "answers": "builders add answers --raw {here}/raw --release {here}/release --out {here}/out",
    "nano": "builders add samples --release {here}/release --nano --hard {here}/dev.run --extract --out {here}/out",
    "check": "builders check --release {here}/release --format json",
    "cmedqa": "builders add cmedqa --source {here}/cmedqa --release {here}/release --out {here}/out",
    "ccovid": "builders add ccovid --source {here}/ccovid --release {here}/release --out {here}/out --test-size 1",
    "crosslingual": "builders add crosslingual --source {here}/table.csv --release {here}/release --out {here}/out",
    "stress": "builders add stress --release {here}/release --out {here}/out",
    "translations": "builders annotate translations export --release {here}/release --out {here}/out",
    "similar": "builders similar --release {here}/release --out {here}/out",
    "contamination": "builders similar --release {here}/release --against {here}/pairs.jsonl --format json",
    "restrain": f"builders add restrain {_VECTOR_OPTIONS} --size 1 --out {{here}}/out",
    "resttest": f"builders add resttest {_VECTOR_OPTIONS} --buckets 2 --out {{here}}/out",
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
    "evaluate --budget": "baselines evaluate {here}/dev.run --release {here}/release --answers --budget 16 64",
    "compare": "baselines compare --release {here}/release {here}/dev.run {here}/other.run --format json",
    "compare --stress": "baselines compare --release {here}/release --stress {here}/dev.run {here}/repeat.run"
    " --resamples 99 --format json",
    "evaluate --set stress": "baselines evaluate --release {here}/release --set stress-repeat {here}/repeat.run",
    "fuse": "baselines fuse --release {here}/release --method weighted --tune dev --tune-on-these --weights {here}/out"
    " --out {here}/out.run {here}/dev.run {here}/other.run",
    "show": "baselines show --release {here}/release {here}/dev.run",
    "errors holes": "baselines errors holes --release {here}/release {here}/dev.run",
    "errors duplicates": "baselines errors duplicates --release {here}/release {here}/dev.run",
    "errors stages": "baselines errors stages --release {here}/release {here}/dev.run {here}/other.run",
    "errors no-answer": "baselines errors no-answer --release {here}/release {here}/scored.run",
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
_RECORD_NAMES = {"EXPORT", MANIFEST, "README.md", "stats.json", "training.json"}
RAW_ROW = raw_row(1, QUESTIONS["dev"][0], [TEXTS[4:]], [TEXTS[4], "十五天"])
RAW_ROW["question_type"] = "ENTITY"
RAW_ROW["entity_answers"] = [["十五天"], []]
RAW_ROW["yesno_answers"] = ["", "Yes"]


def add_answers(rows: Rows) -> None:
    """Add a row of answers to the tables of a release."""
    fields = ("answers", "question_type", "fact_or_opinion", "entity_answers", "yesno_answers")
    answer_row = {name: RAW_ROW[name] for name in fields}
    answer_row["query_id"] = md5(RAW_ROW["question"])
    answer_row["source"] = "search"
    answer_row["answer_passages"] = [[md5(TEXTS[4])], []]
    rows["answers", "dev"] = [answer_row]


def repeat_end(question: str) -> str:
    """Return a question with its last character twice, as in the set stress-repeat."""
    return question + question[-1]


def add_rows(rows: Rows) -> None:
    """Add a row of answers and a set of perturbed questions to the tables of a release."""
    add_answers(rows)
    rows["stress-repeat-queries", "dev"] = [
        {"_id": md5(repeat_end(question)), "text": repeat_end(question), "original_id": md5(question)}
        for question in QUESTIONS["dev"]
    ]


def make_inputs(folder: Path) -> None:
    """Write the inputs of all verbs that need no model."""
    folder.mkdir()
    # Imported here, because these files import many libraries.
    from test_fuzz_models import write_checkpoint
    from test_fuzz_sources import write_ccovid, write_cmedqa

    make_whole(folder / "release", add_rows)
    write_rows(folder / "raw" / "search.dev.json", [RAW_ROW])
    for name, write in (("checkpoint", write_checkpoint), ("cmedqa", write_cmedqa), ("ccovid", write_ccovid)):
        (folder / name).mkdir()
        write(folder / name)
    table_lines = [f"{question},{translation}\n" for question, translation in ENGLISH.items()]
    (folder / "table.csv").write_text("".join(table_lines), encoding="utf-8")
    pair = {"query": QUESTIONS["dev"][0], "pos": TEXTS[4:]}
    (folder / "pairs.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    passage_ids = [md5(text) for text in TEXTS]
    write_hits(folder / "train.run", "train", passage_ids)
    write_hits(folder / "dev.run", "dev", passage_ids)
    write_hits(folder / "other.run", "dev", passage_ids[::-1])
    write_hits(folder / "scored.run", "dev", passage_ids, step=0.1)
    hits = [(passage_id, 1 / rank) for rank, passage_id in enumerate(passage_ids, start=1)]
    write_run(folder / "repeat.run", [(md5(repeat_end(question)), hits) for question in QUESTIONS["dev"]])
    first_id, second_id = map(md5, QUESTIONS["dev"][:2])
    labels = {(first_id, passage_ids[0]): 1, (second_id, passage_ids[5]): 0}
    judged_round(folder / "round", folder / "release", {"dev-001": ("accepted", labels)})
    write_query_vectors(folder / "v.parquet")


def write_hits(path: Path, split: str, passage_ids: list[str], step: float = 0.0) -> None:
    """Write a run with the same passages for each question of a split. Scores rise by ``step`` with each question."""
    rankings = []
    for number, question in enumerate(QUESTIONS[split]):
        hits = [(passage_id, number * step + 1 / rank) for rank, passage_id in enumerate(passage_ids, start=1)]
        rankings.append((md5(question), hits))
    write_run(path, rankings)


def write_query_vectors(path: Path) -> None:
    """Write a random vector for each question."""
    query_ids = []
    for questions in QUESTIONS.values():
        query_ids += [md5(question) for question in questions]
    vectors = np.random.default_rng(0).normal(size=(len(query_ids), 4)).tolist()
    pq.write_table(pa.table({"_id": query_ids, "embedding": vectors}), path)


def make_inputs_with_models(folder: Path) -> None:
    """Write the inputs of all verbs."""
    from tiny_models import write_cross, write_dual

    make_inputs(folder)
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    words = ["--release", folder / "release", "--model", folder / "dual", "--device", "cpu"]
    run("baselines", "encode", words, "--out", folder / "vectors")


def listed_files(folder: Path) -> list[list[Any]]:
    """Return the files that the manifest lists, or nothing if it cannot be read."""
    try:
        files = loads((folder / "release" / MANIFEST).read_text(encoding="utf-8-sig"))["files"]
        return sorted([entry["path"], entry["bytes"], entry["rows"], entry["sha256"]] for entry in files)
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def output_files(folder: Path) -> dict[str, bytes]:
    """Read the files of the outputs, without records and without the times in manifests, which differ in every call."""
    paths: list[Path] = []
    for out in folder.glob("out*"):
        if out.suffix != ".training":
            paths += out.rglob("*") if out.is_dir() else [out]
    contents = {}
    for path in paths:
        if path.is_file() and path.name not in _RECORD_NAMES:
            content = path.read_bytes()
            if path.name == "out.manifest.json":
                manifest = json.loads(content)
                for key in TIMED_KEYS:
                    manifest.pop(key, None)
                content = json.dumps(manifest).encode()
            contents[str(path.relative_to(folder))] = content
    return contents


def run_at_new_hub(folder: Path, program: str, words: list[str]) -> tuple[Done, dict[str, bytes]]:
    """Run a command at a new hub. Return the result and the files that were sent, without records."""
    with Hub() as hub:
        repo = hub.create(REPO, "model" if program == "baselines" else "dataset")
        files_before = dict(repo.files)
        done = run_at(hub, folder.parent / "cache" / "hub", program, *words, code=None)
        sent_files = {}
        for path, content in repo.files.items():
            if files_before.get(path) != content and path not in _RECORD_NAMES:
                sent_files[path] = content
    return done, sent_files


class VerbOutput(NamedTuple):
    """The stdout and files of a verb, and the files that the manifest of its input lists."""

    stdout: str
    files: dict[str, bytes]
    listed_files: list[list[Any]]


def verb_reader(verb: str, is_hostile: bool, intact_inputs: Path) -> Reader:
    """Return a fuzzer of a verb. ``is_hostile``: the manifest describes the damaged files."""
    words = VERBS[verb].split()
    program = words[0]
    name = words[1]

    def read(folder: Path) -> Any:
        formatted_words = [name, "--quiet"] + [word.format(here=folder) for word in words[2:]]
        sent_files: dict[str, bytes] = {}
        if name in HUB:
            done, sent_files = run_at_new_hub(folder, program, formatted_words)
        else:
            done = run(program, formatted_words, code=None)
        has_findings = name == "check" and done.code and done.stdout  # `check` prints its findings
        if done.code and not has_findings:
            assert not sent_files
            return done
        # Findings are about the damage, and the verbs at a hub print commits.
        stdout = "" if has_findings or name in HUB else done.stdout
        output = VerbOutput(stdout, output_files(folder) | sent_files, listed_files(folder))
        # Files beside the output, which would be left behind.
        for file_name in ("out.run", "out.parquet", "out.manifest.json"):
            (folder / file_name).unlink(missing_ok=True)
        shutil.rmtree(folder / "out.training", ignore_errors=True)
        return output

    def is_same_output(output: VerbOutput, intact_output: VerbOutput, _: Path) -> bool:
        if name == "check" and not output.stdout:
            return True
        if output.listed_files != intact_output.listed_files:  # another manifest describes another release
            return True
        return output == intact_output

    return Reader(
        name=f"{verb}, on a {'hostile' if is_hostile else 'damaged'} release",
        reaches=_function(program, name, words[2:]),
        make=lambda folder: shutil.copytree(intact_inputs, folder, dirs_exist_ok=True),
        spoils={"release/manifest.json": JSON, "release/stats.json": JSON, "release/*/*.parquet": PARQUET},
        read=read,
        right=(lambda *_: True) if is_hostile else is_same_output,
        mend=sign if is_hostile else lambda _: None,
        share=0.005 if verb in TORCH else 0.02,
        names_files=name != "export",  # an error names the exported file
    )


def _function(program: str, name: str, words: list[str]) -> str:
    """Return "module:function" of a verb, or of the step that the words begin with."""
    target: str = importlib.import_module(f"{program}.__main__").VERBS[name]
    if ":" not in target:
        target = importlib.import_module(target).STEPS[words[0]]
    return target


def verb_parameters() -> list[Any]:
    """Return (verb, True for a hostile release) for each verb. A verb of a model is skipped by ``make test``."""
    parameters = []
    for verb in VERBS:
        skip = pytest.mark.skipif(verb in TORCH and not CASES, reason="takes minutes: make test-slow")
        parameters.append(pytest.param(verb, False, id=f"{verb}-damaged", marks=skip))
        parameters.append(pytest.param(verb, True, id=f"{verb}-hostile", marks=skip))
    return parameters


@pytest.mark.usefixtures("equal_figures_are_drawn_once")
@pytest.mark.parametrize(("verb", "is_hostile"), verb_parameters())
def test_a_damaged_release_gives_the_same_output_or_one_error(
    verb: str, is_hostile: bool, once: Once, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    needs_models = verb in TORCH
    intact_inputs = once("verbs-with-models", make_inputs_with_models) if needs_models else once("verbs", make_inputs)
    fuzz_and_count(verb_reader(verb, is_hostile, intact_inputs), tmp_path, record_property)
