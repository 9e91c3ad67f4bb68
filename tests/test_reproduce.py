"""``reproduce``: the matrix, its steps, and tables that never pass a small run off as the paper's."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest
from commands import ROOT
from releases import make_release, tables

from baselines.__main__ import VERBS as STEPS
from baselines.reproduce import matrix as matrices
from baselines.reproduce.matrix import read_matrix
from baselines.train.recipe import names
from builders.core.command import main
from builders.core.errors import InputError

VERBS = {"reproduce": "baselines.reproduce"}
# As the paper prints them (Tables 4, 5, 7, 8: MRR@10, Recall@1, Recall@50; 6: the first two; 9: Recall@50).
PUBLISHED = {
    (4, "bm25"): (21.03, 12.08, 70.00),
    (4, "de-bm25-neg"): (53.96, 41.53, 91.33),
    (4, "official-de"): (60.45, 49.75, 91.75),  # of the official code, on dev
    (5, "ce-bm25-neg-on-bm25"): (56.80, 48.83, 70.00),
    (5, "ce-de-neg-on-bm25"): (57.62, 51.52, 70.00),
    (5, "ce-de-neg-on-de"): (74.21, 66.03, 91.33),
    (5, "official-ce"): (72.84, 64.10, 91.75),  # of the official code, on dev
    (6, "with-similar-duplicated"): (50.60, 43.93),
    (6, "without-similar-duplicated"): (49.94, 42.89),
    (6, "with-similar-others"): (55.41, 47.02),
    (6, "without-similar-others"): (56.59, 48.63),
    (7, "bm25"): (6.26, 4.98, 14.05),
    (7, "de-zero-shot"): (4.39, 2.93, 16.40),
    (7, "de-fine-tuned"): (15.22, 11.28, 40.36),
    (8, "bm25"): (57.49, 48.37, 85.67),
    (8, "de-zero-shot"): (14.02, 9.91, 38.04),
    (8, "de-fine-tuned"): (56.67, 46.68, 87.78),
    (9, "supervised"): (28.03,),
    (9, "zero-shot"): (19.50,),
    (9, "zero-shot-monolingual"): (87.88,),
    (9, "transferred"): (38.35,),
}
FILL = {"release": "R", "split": "dev", "out": "O", "variant": "-scratch"}


def run(*words: object) -> int:
    return main("baselines", "", VERBS, ["reproduce", *map(str, words)])


@pytest.fixture()
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_release(tmp_path / "release", tables())


def test_table_4_bm25_runs_and_says_what_it_was_measured_on(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--table", 4, "--row", "bm25", "--release", release, "--out", tmp_path / "runs"]
    assert run(*argv) == 0
    out, err = capfd.readouterr()
    assert f"measured on: release {release}, split dev, 2 queries with positives, 6 passages" in out
    assert "not the published collection (6 passages against 8,096,668): the two columns are not comparable" in out
    assert "published: the test split, whose labels are unpublished; ours: the dev split" in out
    assert "embedded sample" not in out and "from scratch" not in out
    cells = [line.split() for line in out.splitlines()]
    assert ["MRR@10", "Recall@1", "Recall@50", "|", "published:", "MRR@10", "Recall@1", "Recall@50"] in [
        line[:8] for line in cells
    ]
    published = ["|", "21.03", "12.08", "70.00", "paper,", "test", "not", "comparable", "(1)"]
    assert ["BM25", "100.00", "100.00", "100.00", *published] in cells
    why = "measured on dev, published on test; 6 passages, not 8,096,668"
    assert f"(1) not comparable: {why}" in out
    assert ["95", "%", *["100.0-100.0"] * 3, "|"] in cells
    assert "running: python -m baselines bm25 --release" in err
    assert (tmp_path / "runs" / "bm25.dev.run.gz").exists()
    assert list((tmp_path / "cache" / "dureader_retrieval" / "bm25").iterdir())

    assert run(*argv, "--format", "json", "--quiet") == 0
    report = json.loads(capfd.readouterr().out)
    (measured,) = report["sets"]
    assert (measured["passages"], measured["queries"], measured["same_collection"]) == (6, 2, False)
    assert len(report["notes"]) == 2
    assert report["rows"][0] == {
        "table": 4,
        "row": "bm25",
        "title": "BM25",
        "metric": "MRR@10",
        "ours": 100.0,
        "interval": [100.0, 100.0],
        "published": 21.03,
        "published_by": "paper, test",
        "mark": "not comparable",
        "why": ["measured on dev, published on test", "6 passages, not 8,096,668"],
        "like_for_like": None,
        "step": "bm25-dev",
        "seconds": report["steps"]["bm25-dev"]["seconds"],
    }
    step = report["steps"]["bm25-dev"]
    assert step["command"].startswith(f"python -m baselines bm25 --release {release} --split dev ")
    assert step["seconds"] > 0 and step["processes"] == 1


def test_a_step_is_run_again_only_where_it_must_be(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--table", 4, "--row", "bm25", "--release", release, "--out", tmp_path / "runs", "--one-process"]
    output = tmp_path / "runs" / "bm25.dev.run.gz"

    def ran(*more: object) -> bool:
        assert run(*argv, *more) == 0
        err = capfd.readouterr().err
        assert ("running: " in err) != (f"done already: {output}" in err)
        return "running: " in err

    assert ran()
    whole = output.read_bytes()
    assert not ran()
    assert ran("--no-resume")
    output.write_bytes(whole[:-1])  # not what the step wrote
    assert ran() and output.read_bytes() == whole
    output.unlink()
    assert ran()
    rows = tables()
    rows["queries", "train"] = rows["queries", "train"][:-1]
    make_release(release, rows)  # other data
    assert ran() and not ran()


def test_dry_run_prints_the_commands_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--table", 4, "--row", "bm25", "--dry-run") == 0
    build, bm25, evaluate = capsys.readouterr().out.splitlines()
    assert build == f"python -m builders release --raw {ROOT / 'builders' / 'sample'} --out build/sample"
    assert bm25 == (
        "python -m baselines bm25 --release build/sample --split dev --top-k 50 --out build/runs/bm25.dev.run.gz"
    )
    assert evaluate == "python -m baselines evaluate --release build/sample --split dev build/runs/bm25.dev.run.gz"
    assert list(tmp_path.iterdir()) == []


def words_of(capsys: pytest.CaptureFixture[str], *more: object) -> list[list[str]]:
    assert run("--dry-run", "--format", "json", "--release", "nowhere", *more) == 0
    commands = json.loads(capsys.readouterr().out)
    return [command for command in commands if command[1] not in ("release", "evaluate")]


def test_shared_steps_come_once_and_before_what_needs_them(capsys: pytest.CaptureFixture[str]) -> None:
    for variant in ([], ["--scratch"]):
        commands = words_of(capsys, *variant)
        written = [command[command.index("--out") + 1] for command in commands]
        assert len(set(written)) == len(written)
        for place, command in enumerate(commands):
            # Whatever a step reads of what others write is written before it.
            assert {word for word in command if word in written[place + 1 :]} == set()
        trained = [command[2].removesuffix("-scratch") for command in commands if command[1] == "train"]
        assert ("mlm" in trained) == bool(variant)
        for first, second in (
            ("ce-bm25-neg", "ce-de-neg"),
            ("de-bm25-neg", "de-cmedqa"),
            ("de-bm25-neg", "de-ccovid"),
            ("mbert-zero-shot", "mbert-transferred"),
        ):
            assert trained.index(first) < trained.index(second)
        assert {f"{name}-scratch" if variant else name for name in trained} == {
            name
            for name in names()
            if name.endswith("-scratch") == bool(variant) and not name.startswith(("question-matching", "static"))
        }


def test_a_row_needs_no_more_than_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    commands = words_of(capsys, "--row", "ce-bm25-neg-on-bm25", "--scratch")
    assert [command[1] for command in commands] == ["bm25", "train", "bm25", "mine", "train", "rerank"]
    assert not [word for command in commands for word in command if "de-" in word]


def test_every_command_is_one_that_its_verb_takes() -> None:
    matrix = read_matrix()
    for variant in ("", "-scratch"):
        for step in matrix.plan(matrix.rows, FILL | {"variant": variant}).values():
            parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
            importlib.import_module(STEPS[step.command[1]]).add_arguments(parser)
            args = parser.parse_args(step.command[2:])
            assert args.release == Path("R") and Path(args.out) == step.output


@pytest.mark.parametrize("wanted", [["--table", "99"], ["--row", "nope"], ["--table", "5", "--row", "bm25"]])
def test_an_unknown_row_names_the_known_ones(wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dry-run", *wanted) == 1
    err = capsys.readouterr().err
    assert f"no row fits {' '.join(wanted)}; known: " in err
    assert "--table 4 --row bm25" in err


def test_a_set_that_the_release_lacks_is_named(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("--table", 7, "--row", "bm25", "--release", release, "--out", tmp_path / "runs") == 1
    out, err = capfd.readouterr()
    assert out == "" and f"error: {release}: has no queries of cmedqa to measure on; `python -m builders" in err


def test_a_step_that_fails_is_named(release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (next((release / "corpus").iterdir())).unlink()
    assert run("--row", "bm25", "--table", 4, "--release", release, "--out", tmp_path / "runs") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "error: this step failed with exit code 1: python -m baselines bm25" in err


def test_the_matrix_holds_the_figures_that_the_paper_prints() -> None:
    matrix = read_matrix()
    measures = ("MRR@10", "Recall@1", "Recall@50")
    rows = [row for row in matrix.rows if row.table]
    found = {(row.table, row.name): tuple(row.published[m] for m in measures if m in row.published) for row in rows}
    assert found == PUBLISHED
    assert len(rows) == len(found)
    main, dev = matrix.published_on["main"], matrix.published_on["official-dev"]
    assert (main.split, main.source, main.queries, main.passages) == ("test", "paper", 4000, 8_096_668)
    assert (dev.split, dev.source, dev.queries, dev.passages) == ("dev", "official code", 2000, 8_096_668)


STEP = "[published_on]\nmain = { split = 'test' }\n[step]\nx = 'baselines bm25 --out {out}/x'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[row]\n", "expected TOML"),
        ("[published_on]\n[step]\n[[row]]\ntable = 4\n", r"row\[0\]: lacks name"),
        ("[published_on]\n[step]\nx = 3\n", r"step\[...\]: expected `str`, got `int`"),
        ("[published_on]\n[stop]\n", "unknown key 'stop'; expected published_on, step, row, made_by"),
        (STEP + "y = 'baselines bm25 --run {z} --out {out}/y'\n", "lacks row"),
        (
            STEP + "y = 'baselines bm25 --run {z} --out {out}/y'\n"
            "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\n",
            "step 'y': expected --out and known names",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = { 'P@7' = 1.0 }\n",
            "row 'x': unknown measures",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = { 'MRR@10' = 101.0 }\n",
            r"row\[0\].published\[...\]: expected `float` <= 100",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'nope'\npublished = {}\n",
            "row 'x': unknown step 'nope'",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\npublished_on = 'dev'\n",
            "row 'x': unknown published_on 'dev'",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\nlike = 'y'\n",
            "row 'x': unknown row 'y' to compare with",
        ),
        (
            STEP + "[[row]]\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\n",
            r"row\[0\]: expected a table, or a figure and a series",
        ),
        (
            STEP + "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\nqueries = 'train'\n",
            "row 'x': unknown queries 'train' or qrels ''",
        ),
    ],
)
def test_a_bad_matrix_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / matrices.MATRIX.name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_matrix(path)


def test_steps_that_need_each_other_are_named(tmp_path: Path) -> None:
    path = tmp_path / matrices.MATRIX.name
    row = "[[row]]\ntable = 4\nname = 'x'\ntitle = 'X'\nstep = 'x'\npublished = {}\n"
    path.write_text(STEP.replace("--out", "--run {y} --out") + "y = 'baselines bm25 --run {x} --out {out}/y'\n" + row)
    matrix = read_matrix(path)
    with pytest.raises(InputError, match="the step 'x' needs itself"):
        matrix.plan(matrix.rows, FILL)


def test_a_training_is_the_same_whatever_split_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for row in ("ce-de-neg-on-de", "official-ce"):
        plans = [words_of(capsys, "--row", row, "--split", split) for split in ("dev", "test")]
        trainings = [[command for command in plan if command[1] == "train"] for plan in plans]
        assert trainings[0] == trainings[1]
        # The dev curve of a cross-encoder re-ranks a run of dev, which is made before.
        assert all(command[command.index("--dev-run") + 1].endswith("dev.run.gz") for command in trainings[1][-1:])
        written = [command[command.index("--out") + 1] for command in plans[1]]
        assert trainings[1][-1][trainings[1][-1].index("--dev-run") + 1] in written
