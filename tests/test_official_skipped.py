"""``official --skip-bad-lines``: a bad line of any file is left out, counted and listed; all the rest is as it was."""

from __future__ import annotations

import json
from pathlib import Path

import official_archives as made
import pytest
from commands import Done, run
from official_archives import BOTH, DEV, ORIGINAL, PASSAGES, PREPROCESSED, TRAIN, md5
from official_release import tables

from builders.official import blocks
from builders.official.build import build_official
from builders.store.reader import open_release

PARTS = f"{PREPROCESSED}/passage-collection/part-0"
FIRST = next(iter(DEV))
# (file, a line that is not in its format, what is said of it)
BAD = [
    ("train/dual.train.tsv", "问\t\t答\t\t否", "expected 6 columns"),
    ("train/dual.train.tsv", "问\t\t\t\t否\t0", "expected the text of a passage, found nothing"),
    ("train/cross.train.tsv", "问\t\t答\t1\t1", "expected 4 columns"),
    ("train/cross.train.tsv", "问\t\t答\t2", "expected the label 0 or 1 in column 4, found '2'"),
    ("train/cross.train.tsv", "问\t\t\udcff\t1", "not UTF-8"),
    ("train.json", "{", "found no JSON"),
    ("dev.json", json.dumps(made.question("问", None)), "missing required field `answer_paragraphs`"),
    ("test1.json", '{"question_id": "1", "question": "问"}', "not a question"),
    ("test1.json", json.dumps(made.question("问", None)).replace("\\u95ee", "\udcff"), "not UTF-8"),
    ("passage_collection.json", json.dumps({"paragraph_id": md5("空"), "paragraph_text": ""}), "not a passage"),
]


def path_of(name: str) -> str:
    """The archive's path of a file, for its name or the end of its path."""
    return next(path for path in BOTH if path.endswith(f"/{name}"))


def write_with(folder: Path, name: str, row: int, *lines: str, instead: int = 0) -> Path:
    """Both releases' files, ``lines`` put into one of them before its line ``row`` (from 0) or ``instead`` of some."""
    made.write_files(folder, BOTH)
    rows = BOTH[name].splitlines()
    rows[row : row + instead] = lines
    (folder / name).write_bytes("".join(f"{each}\n" for each in rows).encode(errors="surrogateescape"))
    return folder


def official(source: Path, release: Path, *options: str, code: int = 0) -> Done:
    return run("builders", "official", "--archive", source, "--out", release, *options, code=code)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of the files without a bad line."""
    folder = tmp_path_factory.mktemp("clean")
    build_official([made.write_files(folder / "in", BOTH)], folder / "release")
    return folder / "release"


@pytest.mark.parametrize(("name", "bad", "said", "row"), [(*each, place % 2) for place, each in enumerate(BAD)])
def test_a_bad_line_is_reported_and_all_the_rest_is_as_without_it(
    tmp_path: Path, clean: Path, name: str, bad: str, said: str, row: int
) -> None:
    path = path_of(name)
    source = write_with(tmp_path / "in", path, row, bad)
    refused = official(source, tmp_path / "release", "--quiet", code=1).error
    assert refused.startswith(f"{source / path}:{row + 1}: ") and said in refused

    done = official(source, tmp_path / "release", "--skip-bad-lines")
    left_out = f"bad lines of {path} (left out)"
    assert f"{left_out}: 1; line {row + 1}: " in done.stdout and said in done.stdout
    assert tables(tmp_path / "release") == tables(clean)
    run_file = "runs/official-dev-top50.trec"
    assert (tmp_path / "release" / run_file).read_bytes() == (clean / run_file).read_bytes()

    stats = json.loads((tmp_path / "release" / "stats.json").read_text(encoding="utf-8"))["official"]
    assert stats["findings"].pop(left_out) == 1 and said in stats["examples"].pop(left_out)[0]
    assert stats == json.loads((clean / "stats.json").read_text(encoding="utf-8"))["official"]
    (build,) = open_release(tmp_path / "release").manifest.builds
    assert build.options["skipped_lines"] == 1
    listed = (tmp_path / "release" / "official" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert listed[0] == "file\tline\twhat" and listed[1].startswith(f"{path}\t{row + 1}\t") and len(listed) == 2


def test_a_passage_that_is_left_out_keeps_its_line_number(tmp_path: Path) -> None:
    """The ids of the passages after it are still their own; a judgment of it is left out, and counted."""
    files = {name: text for name, text in BOTH.items() if not name.startswith(ORIGINAL)}
    name = f"{PREPROCESSED}/passage-collection/passage2id.map.json"
    files[name] = files[name].replace(md5(PASSAGES[10]), "f" * 32)  # an id that only the line number says
    files[f"{PARTS}1"] = files[f"{PARTS}1"].replace(f"-\t\t{PASSAGES[5]}\t0", f"-\t{PASSAGES[5]}\t0")
    source = made.write_files(tmp_path / "in", files)
    official(source, tmp_path / "release", "--skip-bad-lines")
    held = {row["_id"]: row["text"] for row in tables(tmp_path / "release")["corpus", "corpus"]}
    ids = [md5(text) for text in PASSAGES]
    ids[10] = "f" * 32
    assert list(held.items()) == [pair for number, pair in enumerate(zip(ids, PASSAGES, strict=True)) if number != 5]
    judged = {row["corpus-id"] for row in tables(tmp_path / "release")["qrels", "dev"]}
    assert judged == {ids[number] for number in DEV[FIRST]}  # the other question's only answer is the passage
    stats = json.loads((tmp_path / "release" / "stats.json").read_text(encoding="utf-8"))["official"]
    assert stats["findings"]["judgments of dev whose passage the collection lacks (left out of the qrels)"] == 1


def test_a_question_that_is_left_out_takes_its_judgments_along(tmp_path: Path) -> None:
    source = write_with(tmp_path / "in", path_of("train.json"), 1, "{", instead=1)
    official(source, tmp_path / "release", "--skip-bad-lines")
    questions = [question for number, question in enumerate(TRAIN) if number != 1]
    assert [row["text"] for row in tables(tmp_path / "release")["queries", "train"]] == questions
    assert [row["query-id"] for row in tables(tmp_path / "release")["qrels", "train"]] == list(map(md5, questions))


def test_a_question_keeps_its_first_text(tmp_path: Path, clean: Path) -> None:
    other = json.dumps(made.question(FIRST, [PASSAGES[1]]) | {"question": "另问"})
    source = write_with(tmp_path / "in", f"{ORIGINAL}/dev.json", 1, other)
    said = f"dev.json:2: question_id {md5(FIRST)} has two texts; expected one text for one id"
    assert said in official(source, tmp_path / "release", "--quiet", code=1).stderr
    official(source, tmp_path / "release", "--skip-bad-lines")
    assert tables(tmp_path / "release") == tables(clean)


def test_a_bad_line_of_the_top_50_leaves_its_run(tmp_path: Path, clean: Path) -> None:
    source = write_with(tmp_path / "in", path_of("dev.retrieval.top50.res.id_map.tsv"), 1, "x", instead=1)
    official(source, tmp_path / "release", "--skip-bad-lines")
    hits, every = (
        [line.split()[2] for line in (release / "runs/official-dev-top50.trec").read_text().splitlines()]
        for release in (tmp_path / "release", clean)
    )
    assert hits == [hit for row, hit in enumerate(every) if row != 1]


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_with(tmp_path / "in", f"{PARTS}0", 1, "-", "-\t\t\t0", instead=2)
    build_official([source], tmp_path / "one", skip_bad_lines=True)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 60)
    build_official([source], tmp_path / "two", skip_bad_lines=True)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()
    lines = (tmp_path / "two" / "official" / "skipped.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == ["2", "3"]


def test_a_file_of_bad_lines_is_another_file_than_its_name_says(tmp_path: Path) -> None:
    name = path_of("dual.train.tsv")
    source = write_with(tmp_path / "in", name, 0, "x", "y", instead=len(made.DUAL))
    error = official(source, tmp_path / "release", "--skip-bad-lines", code=1).stderr
    assert f"{name}:1: no line is good; the first: expected 6 columns" in error


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("part-00", "-\t\t一段\t0\r\n", "CR LF"),
        ("train.json", "\ufeff{}", "byte order mark"),
        ("q2qid.dev.json", "[]", "one JSON object"),
        ("passage_collection.json", '{"data": [{"paragraph_id": "x"}]}', "not a passage"),
        ("passage2id.map.json", '{"0": "x"}', "not pairs of a line number and an id"),
    ],
)
def test_what_is_wrong_with_a_file_as_a_whole_stops_the_build_all_the_same(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    folder = made.write_files(tmp_path / "in", {name: content})
    assert said in official(folder, tmp_path / "release", "--skip-bad-lines", "--quiet", code=1).error
