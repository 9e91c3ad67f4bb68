"""Official archives that are damaged or harmful, and releases from copies on a hub (``official --copy``)."""

import gzip
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import official_archives as made
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_server import member
from commands import Done, run
from hub_client import run_at
from hub_server import Blob, Hub
from official_archives import BOTH, DEV, ORIGINAL, PASSAGES, PREPROCESSED, TRAIN, lines, original_files
from official_archives import tables as rows_of
from releases import QUESTIONS, TEXTS, md5, passage, tables

from builders.core.errors import InputError
from builders.official import blocks
from builders.official.assembly import build_from_archives

PARTS = f"{PREPROCESSED}/passage-collection/part-0"
MAP = f"{PREPROCESSED}/passage-collection/passage2id.map.json"
TRAINING = f"{PREPROCESSED}/train"
TOP50 = f"{PREPROCESSED}/auxiliary/dev.retrieval.top50.res"
TEST1 = "dureader-retrieval-test1/test1.json"
FIRST_QUESTION = next(iter(DEV))
UNANSWERED = made.question("问", None)
# (file, bad line, error)
BAD_LINES = [
    (f"{TRAINING}/dual.train.tsv", "问\t\t答\t\t否", "expected 6 columns"),
    (f"{TRAINING}/cross.train.tsv", "问\t\t答\t2", "expected the label 0 or 1 in column 4, found '2'"),
    (f"{TRAINING}/cross.train.tsv", "问\t\t\udcff\t1", "not UTF-8"),
    (f"{TOP50}.id_map.tsv", "1\t2", "32 hex digits"),
    (f"{ORIGINAL}/train.json", "{", "found no JSON"),
    (f"{ORIGINAL}/dev.json", json.dumps(UNANSWERED), "missing required field `answer_paragraphs`"),
    (
        f"{ORIGINAL}/dev.json",
        lines([made.question(FIRST_QUESTION, [])])[:-2] + ', "question": "另问"}',
        "has two texts; expec",
    ),
    (TEST1, '{"question_id": "1", "question": "问"}', "not a question"),
    (f"{ORIGINAL}/passage_collection.json", '{"paragraph_id": 5, "paragraph_text": ""}', "not a passage"),
]


def write_with(folder: Path, name: str, bad_line: str) -> Path:
    """Write both releases' files, with ``bad_line`` as the second line of the file ``name``."""
    made.write_files(folder, BOTH)
    file_lines = BOTH[name].splitlines()
    file_lines.insert(1, bad_line)
    content = "".join(f"{line}\n" for line in file_lines)
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    return folder


def official(source: Path, release: Path, *options: str, code: int = 0) -> Done:
    """Build a release from archives."""
    return run("builders", "official", "--archive", source, "--out", release, options, code=code)


def official_stats(release: Path) -> dict[str, Any]:
    return json.loads((release / "stats.json").read_text(encoding="utf-8"))["official"]


@pytest.fixture(scope="module")
def clean_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a release from archives without bad lines."""
    folder = tmp_path_factory.mktemp("clean")
    build_from_archives([made.write_files(folder / "in", BOTH)], folder / "release")
    return folder / "release"


@pytest.mark.parametrize(("name", "bad_line", "message"), BAD_LINES)
def test_a_bad_line_stops_the_build_or_is_skipped(
    tmp_path: Path, clean_release: Path, name: str, bad_line: str, message: str
) -> None:
    source = write_with(tmp_path / "in", name, bad_line)
    release = tmp_path / "release"
    error_line = official(source, release, "--quiet", code=1).error
    assert error_line.startswith(f"{source / name}:2: ") and message in error_line
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # no partial output is left

    done = official(source, release, "--skip-bad-lines")
    finding = f"bad lines of {name} (skipped)"
    assert f"{finding}: 1; line 2: " in done.stdout and message in done.stdout
    assert rows_of(release) == rows_of(clean_release)
    run_file = "runs/official-dev-top50.trec"
    assert (release / run_file).read_bytes() == (clean_release / run_file).read_bytes()
    stats = official_stats(release)
    assert stats["findings"].pop(finding) == 1
    assert message in stats["examples"].pop(finding)[0]
    assert stats["files"] == official_stats(clean_release)["files"]
    (build_record,) = json.loads((release / "manifest.json").read_text())["builds"]
    assert build_record["options"] == {"skipped_lines": 1}
    skipped_lines = (release / "official" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert len(skipped_lines) == 2
    assert skipped_lines[0] == "file\tline\twhat"
    assert skipped_lines[1].startswith(f"{name}\t2\t")


def test_what_is_skipped_takes_its_judgments_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: text for name, text in BOTH.items() if f"{ORIGINAL}/passage" not in name}
    files[MAP] = files[MAP].replace(md5(PASSAGES[10]), "f" * 32)  # an id that only the map has
    # Passage 5 has a bad line, and so has question 1 of train.
    files[f"{PARTS}1"] = files[f"{PARTS}1"].replace(f"-\t\t{PASSAGES[5]}\t0", f"-\t{PASSAGES[5]}\t0")
    train_lines = files[f"{ORIGINAL}/train.json"].splitlines()
    train_lines[1] = "{"
    files[f"{ORIGINAL}/train.json"] = "\n".join(train_lines)
    source = made.write_files(tmp_path / "in", files)
    release = tmp_path / "one"
    build_from_archives([source], release, skip_bad_lines=True)

    rows = rows_of(release)
    ids = [md5(text) for text in PASSAGES]
    ids[10] = "f" * 32
    expected_texts = dict(zip(ids, PASSAGES, strict=True))
    del expected_texts[ids[5]]
    texts = {row["_id"]: row["text"] for row in rows["corpus", "corpus"]}
    assert list(texts.items()) == list(expected_texts.items())
    judged_ids = {row["corpus-id"] for row in rows["qrels", "dev"]}
    assert judged_ids == {ids[number] for number in DEV[FIRST_QUESTION]}  # the other question lost its only answer
    findings = official_stats(release)["findings"]
    assert findings["judgments of dev whose passage the collection lacks (not in the qrels)"] == 1
    questions = list(TRAIN)
    del questions[1]
    assert [row["query-id"] for row in rows["qrels", "train"]] == list(map(md5, questions))
    # Smaller blocks change nothing.
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 60)
    build_from_archives([source], tmp_path / "two", skip_bad_lines=True)
    assert (release / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def header(name: str, **values: Any) -> tarfile.TarInfo:
    return member(name, **values)[0]


def archive_with(header_bytes: bytes) -> bytes:
    """Return a tar archive of a good dev.json, then a harmful header."""
    content = original_files()[f"{ORIGINAL}/dev.json"].encode()
    # A tar archive has blocks of 512 bytes, and ends with blocks of zeros.
    padding = bytes(-len(content) % 512)
    return header("dev.json", size=len(content)).tobuf() + content + padding + header_bytes + bytes(20_480)


def gnu_header(name: str, **values: Any) -> bytes:
    """Return a header in the format that allows sizes beyond 8 GiB and negative sizes."""
    return header(name, **values).tobuf(tarfile.GNU_FORMAT)


OUTSIDE = ("../train.json", "a/../../x.txt", "/etc/train.json", "..\\train.json", "C:/train.json", "a\nb/unwanted")
# By name of the case: the error, and the archive.
HARMFUL: dict[str, tuple[str, bytes]] = {}
for _name in OUTSIDE:
    HARMFUL[repr(_name)] = ("refused: the name", archive_with(header(_name).tobuf()))
for _type in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
    _link = header("train.json", type=_type, linkname="/etc/passwd")
    HARMFUL[f"type {_type!r}"] = ("refused", archive_with(_link.tobuf()))
HARMFUL |= {
    "33 GiB": ("refused.*bytes; expected", archive_with(gnu_header("x", size=33 << 30))),
    "a negative size": ("damaged", archive_with(gnu_header("train.json", size=-512))),
    "a negative header": ("damaged", archive_with(gnu_header("x", type=tarfile.XHDTYPE, size=-512))),
    "a header of gigabytes": ("damaged", archive_with(header("x", type=tarfile.XHDTYPE, size=1 << 32).tobuf())),
}


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(("message", "content"), HARMFUL.values(), ids=HARMFUL)
def test_harmful_archives_are_refused(tmp_path: Path, message: str, content: bytes, is_compressed: bool) -> None:
    (tmp_path / "archive").write_bytes(gzip.compress(content) if is_compressed else content)
    with pytest.raises(InputError, match=rf"/archive[!:].*{message}"):
        build_from_archives([tmp_path / "archive"], tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


DEV_QUESTIONS = QUESTIONS["dev"]
DEV_IDS = [md5(question) for question in DEV_QUESTIONS]
PASSAGE_IDS = [md5(text) for text in TEXTS]
RANKING = "zyznull/dureader-retrieval-ranking"
MTEB = "mteb/DuRetrieval"
C_MTEB = "C-MTEB/DuRetrieval"


def write_json_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines, compressed if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def write_parquet(path: Path, **columns: list[Any]) -> None:
    """Write a table of these columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_c_mteb(folder: Path) -> list[Path]:
    """Write five passages, both dev queries, and most judgments in C-MTEB's format, with a separate folder of qrels."""
    data_folder = folder / "DuRetrieval" / "data"
    write_parquet(data_folder / "corpus-00000-of-00001-19b9.parquet", id=PASSAGE_IDS[1:], text=TEXTS[1:])
    write_parquet(data_folder / "queries-00000-of-00001-7c7e.parquet", id=DEV_IDS, text=DEV_QUESTIONS)
    qrels_path = folder / "DuRetrieval-qrels/data/dev-00000-of-00001-d3c3.parquet"
    write_parquet(qrels_path, qid=DEV_IDS[:1], pid=PASSAGE_IDS[4:5], score=[1])
    return [folder / "DuRetrieval", folder / "DuRetrieval-qrels"]


def write_mteb(folder: Path) -> list[Path]:
    """Write the data in mteb's format, with one folder a config, a foreign query id, and a score of 0."""
    write_parquet(folder / "corpus/dev-00000-of-00001.parquet", _id=PASSAGE_IDS[1:], text=TEXTS[1:], title=[""] * 5)
    write_parquet(folder / "queries/dev-00000-of-00001.parquet", _id=["q1", DEV_IDS[1]], text=DEV_QUESTIONS)
    qrels = {"query-id": ["q1", "q1"], "corpus-id": [PASSAGE_IDS[4], PASSAGE_IDS[5]], "score": [1.0, 0.0]}
    write_parquet(folder / "data/dev-00000-of-00001.parquet", **qrels)
    return [folder]


def build(out: Path, *words: object, code: int = 0) -> Done:
    """Build a release from copies."""
    return run("builders", "official", "--copy", words, "--out", out, code=code)


def test_rows_with_their_passages_become_a_release(tmp_path: Path) -> None:
    expected_rows = tables()
    for split in ("train", "dev"):
        # The copy has no titles.
        copied_rows = json.loads(json.dumps(expected_rows[split, split]).replace('"title": "", ', ""))
        write_json_rows(tmp_path / "copy" / f"{split}.jsonl.gz", copied_rows)
    done = build(tmp_path / "out", tmp_path / "copy")
    rows = rows_of(tmp_path / "out")
    for split in ("train", "dev"):
        for config in ("queries", "qrels", split):
            assert rows[config, split] == expected_rows[config, split]
    assert sorted(row["text"] for row in rows["corpus", "corpus"]) == sorted(TEXTS)
    assert re.search(r"passages +6 +8,096,668 +-8,096,662\n", done.stdout)
    assert re.search(r"dev judgments +2 +9,863 +-9,861\n", done.stdout)
    assert "MD5" not in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


def passages_at(*numbers: int) -> list[dict[str, str]]:
    return [passage(TEXTS[number]) for number in numbers]


def test_rows_of_one_question_are_united(tmp_path: Path) -> None:
    copied_rows: list[dict[str, Any]] = []
    for question, positives, negatives in (
        (DEV_QUESTIONS[0], passages_at(4), passages_at(0, 2)),
        (DEV_QUESTIONS[1], passages_at(5), passages_at()),
        (DEV_QUESTIONS[0], passages_at(5), passages_at(1)),
        (DEV_QUESTIONS[0], passages_at(4, 3), passages_at(2, 5)),
    ):
        copied_rows.append({"query": question, "positive_passages": positives, "negative_passages": negatives})
    done = build(tmp_path / "out", write_json_rows(tmp_path / "dev.jsonl", copied_rows))
    rows = rows_of(tmp_path / "out")
    first, second = rows["dev", "dev"]
    assert (first["query"], second["query"]) == (DEV_QUESTIONS[0], DEV_QUESTIONS[1])
    assert first["positive_passages"] == passages_at(4, 5, 3)
    assert first["negative_passages"] == passages_at(0, 2, 1)
    assert [row["corpus-id"] for row in rows["qrels", "dev"]] == [PASSAGE_IDS[number] for number in (4, 5, 3, 5)]
    assert "rows of dev whose query occurred before (passages are merged): 2" in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


@pytest.mark.parametrize(("write_copy", "is_mteb"), [(write_c_mteb, False), (write_mteb, True)])
def test_corpus_queries_and_judgments_become_a_release(
    write_copy: Callable[[Path], list[Path]], is_mteb: bool, tmp_path: Path
) -> None:
    done = build(tmp_path / "out", *write_copy(tmp_path / "copy"))
    rows = rows_of(tmp_path / "out")
    configs = {("corpus", "corpus"), ("queries", "dev"), ("qrels", "dev"), ("dev", "dev")}
    assert set(rows) == configs | ({("original-ids", "queries")} if is_mteb else set())
    assert [row["text"] for row in rows["corpus", "corpus"]] == TEXTS[1:]
    assert rows["queries", "dev"] == [{"_id": DEV_IDS[0], "text": DEV_QUESTIONS[0]}]
    judgments = tables()["qrels", "dev"][:1]
    if is_mteb:  # a passage that was judged negative
        judgments.append({"query-id": DEV_IDS[0], "corpus-id": PASSAGE_IDS[5], "score": 0})
    assert rows["qrels", "dev"] == judgments
    assert "queries without a judgment (skipped): 1; " in done.stdout
    # Only the copy in mteb's format has these oddities.
    assert ("queries whose id in the copy is not the MD5 of the text: 1; q1" in done.stdout) == is_mteb
    assert ("judgments of dev with a score of 0" in done.stdout) == is_mteb
    assert "describe this copy, not the published collection" in (tmp_path / "out/README.md").read_text("utf-8")


@pytest.fixture
def hub_with_copies(tmp_path: Path) -> Iterator[Hub]:
    """Start a hub with copies in three formats, beside files that are not needed."""
    folders = {RANKING: tmp_path / "ranking", MTEB: tmp_path / "mteb"}
    write_json_rows(folders[RANKING] / "dev.jsonl.gz", tables()["dev", "dev"])
    (folders[RANKING] / "train.jsonl.gz").write_bytes(b"not looked at")
    (folders[RANKING] / "script.py").write_text("raise SystemExit")
    write_mteb(folders[MTEB])
    (folders[MTEB] / "dataset_infos.json").write_text("{}")
    folders[C_MTEB], folders[f"{C_MTEB}-qrels"] = write_c_mteb(tmp_path / "c")
    with Hub() as hub:
        for name, folder in folders.items():
            files = {}
            for path in folder.rglob("*"):
                if path.is_file():
                    files[path.relative_to(folder).as_posix()] = Blob(path.read_bytes(), True)
            hub.create(name).add("a copy", files)
        yield hub


def build_from_hub(hub: Hub, tmp_path: Path, *copies: str, code: int = 0) -> Done:
    """Build a release from copies on the hub."""
    words = ["official", "--copy", *copies, "--out", tmp_path / "out", "--format", "json"]
    return run_at(hub, tmp_path / "home", "builders", *words, code=code)


def test_copies_come_from_a_hub(tmp_path: Path, hub_with_copies: Hub) -> None:
    # Only positives are judgments: of MTEB's two rows, one has the score 0.
    for judgment_count, copies in ((2, [f"{RANKING}/dev.jsonl.gz"]), (1, [MTEB]), (1, [C_MTEB, f"{C_MTEB}-qrels"])):
        done = build_from_hub(hub_with_copies, tmp_path, *copies)
        assert json.loads(done.stdout)["copy"]["published"]["dev judgments"] == [judgment_count, 9863]
        build_record = json.loads((tmp_path / "out" / "manifest.json").read_text())["builds"][0]
        assert build_record["options"] == {"copy": copies}
        owner = copies[0].split("/")[0]
        assert all(source["name"].startswith(owner) for source in build_record["sources"])
    fetched_names = {path.rpartition("/")[2] for method, path in hub_with_copies.requests if method == "GET"}
    assert not fetched_names & {"train.jsonl.gz", "script.py", "dataset_infos.json"}


def test_what_is_no_copy_is_refused_with_its_reason(tmp_path: Path, hub_with_copies: Hub) -> None:
    for name, message in (
        (C_MTEB, "the copy has corpus, queries; expected queries with passages, or corpus, queries and qrels"),
        ("no/body", "has no dataset no/body"),
        (f"{MTEB}/nowhere", f"{MTEB} has no .jsonl, .tsv or .parquet file nowhere; set HF_ENDPOINT"),
    ):
        assert message in build_from_hub(hub_with_copies, tmp_path, name, code=1).stderr
