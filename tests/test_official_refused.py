"""Official archives that are damaged or harmful, and releases from copies on a hub (``official --copy``)."""

import gzip
import json
import re
import tarfile
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
TRAINING, TOP50 = f"{PREPROCESSED}/train", f"{PREPROCESSED}/auxiliary/dev.retrieval.top50.res"
TEST1 = "dureader-retrieval-test1/test1.json"
FIRST = next(iter(DEV))
ASKED = made.question("问", None)
# (file, bad line, error)
BAD = [
    (f"{TRAINING}/dual.train.tsv", "问\t\t答\t\t否", "expected 6 columns"),
    (f"{TRAINING}/cross.train.tsv", "问\t\t答\t2", "expected the label 0 or 1 in column 4, found '2'"),
    (f"{TRAINING}/cross.train.tsv", "问\t\t\udcff\t1", "not UTF-8"),
    (f"{TOP50}.id_map.tsv", "1\t2", "32 hex digits"),
    (f"{ORIGINAL}/train.json", "{", "found no JSON"),
    (f"{ORIGINAL}/dev.json", json.dumps(ASKED), "missing required field `answer_paragraphs`"),
    (f"{ORIGINAL}/dev.json", lines([made.question(FIRST, [])])[:-2] + ', "question": "另问"}', "has two texts; expec"),
    (TEST1, '{"question_id": "1", "question": "问"}', "not a question"),
    (f"{ORIGINAL}/passage_collection.json", '{"paragraph_id": 5, "paragraph_text": ""}', "not a passage"),
]


def write_with(folder: Path, name: str, row: int, *added: str, instead: int = 0) -> Path:
    """Write both releases' files. Put ``added`` before line ``row`` (from 0), or in place of ``instead`` lines."""
    made.write_files(folder, BOTH)
    rows = BOTH[name].splitlines()
    rows[row : row + instead] = added
    (folder / name).write_bytes("".join(f"{each}\n" for each in rows).encode(errors="surrogateescape"))
    return folder


def official(source: Path, release: Path, *options: str, code: int = 0) -> Done:
    return run("builders", "official", "--archive", source, "--out", release, *options, code=code)


def official_stats(release: Path) -> dict[str, Any]:
    return json.loads((release / "stats.json").read_text(encoding="utf-8"))["official"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    build_from_archives([made.write_files(folder / "in", BOTH)], folder / "release")
    return folder / "release"


@pytest.mark.parametrize(("name", "bad", "said"), BAD)
def test_a_bad_line_stops_the_build_or_is_skipped(tmp_path: Path, clean: Path, name: str, bad: str, said: str) -> None:
    source = write_with(tmp_path / "in", name, 1, bad)
    refused = official(source, tmp_path / "release", "--quiet", code=1).error
    assert refused.startswith(f"{source / name}:2: ") and said in refused
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # no partial output is left
    done = official(source, tmp_path / "release", "--skip-bad-lines")
    left_out = f"bad lines of {name} (skipped)"
    assert f"{left_out}: 1; line 2: " in done.stdout and said in done.stdout
    assert rows_of(tmp_path / "release") == rows_of(clean)
    run_file = "runs/official-dev-top50.trec"
    assert (tmp_path / "release" / run_file).read_bytes() == (clean / run_file).read_bytes()
    stats = official_stats(tmp_path / "release")
    assert stats["findings"].pop(left_out) == 1 and said in stats["examples"].pop(left_out)[0]
    assert stats["files"] == official_stats(clean)["files"]
    build = json.loads((tmp_path / "release" / "manifest.json").read_text())["builds"][0]
    assert build["options"] == {"skipped_lines": 1}
    listed = (tmp_path / "release" / "official" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert listed[0] == "file\tline\twhat" and listed[1].startswith(f"{name}\t2\t") and len(listed) == 2


def test_what_is_skipped_takes_its_judgments_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: text for name, text in BOTH.items() if f"{ORIGINAL}/passage" not in name}
    files[MAP] = files[MAP].replace(md5(PASSAGES[10]), "f" * 32)  # an id that only the map has
    files[f"{PARTS}1"] = files[f"{PARTS}1"].replace(f"-\t\t{PASSAGES[5]}\t0", f"-\t{PASSAGES[5]}\t0")
    asked = files[f"{ORIGINAL}/train.json"].splitlines()
    files[f"{ORIGINAL}/train.json"] = "\n".join([asked[0], "{", *asked[2:]])
    source = made.write_files(tmp_path / "in", files)
    build_from_archives([source], tmp_path / "one", skip_bad_lines=True)
    held = {row["_id"]: row["text"] for row in rows_of(tmp_path / "one")["corpus", "corpus"]}
    ids = [md5(text) for text in PASSAGES]
    ids[10] = "f" * 32
    assert list(held.items()) == [pair for number, pair in enumerate(zip(ids, PASSAGES, strict=True)) if number != 5]
    judged = {row["corpus-id"] for row in rows_of(tmp_path / "one")["qrels", "dev"]}
    assert judged == {ids[number] for number in DEV[FIRST]}  # the other question lost its only answer
    findings = official_stats(tmp_path / "one")["findings"]
    assert findings["judgments of dev whose passage the collection lacks (not in the qrels)"] == 1
    questions = [question for number, question in enumerate(TRAIN) if number != 1]
    assert [row["query-id"] for row in rows_of(tmp_path / "one")["qrels", "train"]] == list(map(md5, questions))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 60)
    build_from_archives([source], tmp_path / "two", skip_bad_lines=True)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def header(name: str, **values: Any) -> tarfile.TarInfo:
    return member(name, **values)[0]


def begun_by(*headers: bytes) -> bytes:
    good = original_files()[f"{ORIGINAL}/dev.json"].encode()
    dev = header("dev.json", size=len(good)).tobuf() + good.ljust(-(-len(good) // 512) * 512, b"\0")
    return dev + b"".join(headers) + bytes(20_480)


OUTSIDE = ("../train.json", "a/../../x.txt", "/etc/train.json", "..\\train.json", "C:/train.json", "a\nb/unwanted")
HARMFUL = {
    **{repr(name): ("refused: the name", begun_by(header(name).tobuf())) for name in OUTSIDE},
    **{
        f"type {kind!r}": ("refused", begun_by(header("train.json", type=kind, linkname="/etc/passwd").tobuf()))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    },
    "33 GiB": ("refused.*bytes; expected", begun_by(header("x", size=33 << 30).tobuf(tarfile.GNU_FORMAT))),
    "a negative size": ("damaged", begun_by(header("train.json", size=-512).tobuf(tarfile.GNU_FORMAT))),
    "a negative header": ("damaged", begun_by(header("x", type=tarfile.XHDTYPE, size=-512).tobuf(tarfile.GNU_FORMAT))),
    "a header of gigabytes": ("damaged", begun_by(header("x", type=tarfile.XHDTYPE, size=1 << 32).tobuf())),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("said", "content"), HARMFUL.values(), ids=HARMFUL)
def test_harmful_archives_are_refused(tmp_path: Path, said: str, content: bytes, packed: bool) -> None:
    (tmp_path / "archive").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=rf"/archive[:!].*{said}"):
        build_from_archives([tmp_path / "archive"], tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


ASKED_DEV = QUESTIONS["dev"]
RANKING, MTEB, C_MTEB = "zyznull/dureader-retrieval-ranking", "mteb/DuRetrieval", "C-MTEB/DuRetrieval"
IDS = [*map(md5, TEXTS)]


def rows_to(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def parquet(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def c_mteb(folder: Path) -> list[Path]:
    """Write five passages, both dev queries, and most judgments in C-MTEB's format, with a separate folder of qrels."""
    parquet(folder / "DuRetrieval/data/corpus-00000-of-00001-19b9.parquet", id=IDS[1:], text=TEXTS[1:])
    parquet(folder / "DuRetrieval/data/queries-00000-of-00001-7c7e.parquet", id=[*map(md5, ASKED_DEV)], text=ASKED_DEV)
    judged = folder / "DuRetrieval-qrels/data/dev-00000-of-00001-d3c3.parquet"
    parquet(judged, qid=[md5(ASKED_DEV[0])], pid=IDS[4:5], score=[1])
    return [folder / "DuRetrieval", folder / "DuRetrieval-qrels"]


def mteb(folder: Path, queries: dict[str, str], judged: list[tuple[str, int, float]]) -> list[Path]:
    """Write the data in mteb's format, with one folder a config. ``judged``: query, number of the passage, score."""
    parquet(folder / "corpus/dev-00000-of-00001.parquet", _id=IDS[1:], text=TEXTS[1:], title=[""] * 5)
    parquet(folder / "queries/dev-00000-of-00001.parquet", _id=[*queries], text=[*queries.values()])
    asked, passages, scores = zip(*judged, strict=True)
    columns = {"query-id": [*asked], "corpus-id": [IDS[n] for n in passages], "score": [*scores]}
    parquet(folder / "data/dev-00000-of-00001.parquet", **columns)
    return [folder]


ODD = (
    {"q1": ASKED_DEV[0], md5(ASKED_DEV[1]): ASKED_DEV[1]},
    [("q1", 4, 1.0), ("q1", 5, 0.0)],
)  # a foreign id, and a score of 0


def build(out: Path, *words: object, code: int = 0) -> Done:
    return run("builders", "official", "--copy", *words, "--out", out, code=code)


def test_rows_with_their_passages_become_a_release(tmp_path: Path) -> None:
    given = tables()
    for split in ("train", "dev"):
        bare = json.loads(json.dumps(given[split, split]).replace('"title": "", ', ""))  # the copy has no titles
        rows_to(tmp_path / "copy" / f"{split}.jsonl.gz", bare)
    done = build(tmp_path / "out", tmp_path / "copy")
    rows = rows_of(tmp_path / "out")
    for split in ("train", "dev"):
        for config in ("queries", "qrels", split):
            assert rows[config, split] == given[config, split]
    assert sorted(row["text"] for row in rows["corpus", "corpus"]) == sorted(TEXTS)
    assert re.search(r"passages +6 +8,096,668 +-8,096,662\n", done.stdout)
    assert re.search(r"dev judgments +2 +9,863 +-9,861\n", done.stdout) and "MD5" not in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


def test_rows_of_one_question_are_united(tmp_path: Path) -> None:
    given = [(0, [4], [0, 2]), (1, [5], []), (0, [5], [1]), (0, [4, 3], [2, 5])]  # question, positives, negatives
    rows: list[dict[str, Any]] = []
    for number, *both in given:
        own, others = ([passage(TEXTS[n]) for n in each] for each in both)
        rows.append({"query": ASKED_DEV[number], "positive_passages": own, "negative_passages": others})
    done = build(tmp_path / "out", rows_to(tmp_path / "dev.jsonl", rows))
    found = rows_of(tmp_path / "out")
    first, second = found["dev", "dev"]
    assert (first["query"], second["query"]) == (ASKED_DEV[0], ASKED_DEV[1])
    assert first["positive_passages"] == [passage(TEXTS[n]) for n in (4, 5, 3)]
    assert first["negative_passages"] == [passage(TEXTS[n]) for n in (0, 2, 1)]
    assert [row["corpus-id"] for row in found["qrels", "dev"]] == [IDS[n] for n in (4, 5, 3, 5)]
    assert "rows of dev whose query occurred before (passages are merged): 2" in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


@pytest.mark.parametrize("layout", ["C-MTEB", "mteb"])
def test_corpus_queries_and_judgments_become_a_release(layout: str, tmp_path: Path) -> None:
    words = c_mteb(tmp_path / "copy") if layout == "C-MTEB" else mteb(tmp_path / "copy", *ODD)
    done = build(tmp_path / "out", *words)
    rows = rows_of(tmp_path / "out")
    assert {*rows} == {("corpus", "corpus"), ("queries", "dev"), ("qrels", "dev"), ("dev", "dev")}
    assert [row["text"] for row in rows["corpus", "corpus"]] == TEXTS[1:]
    assert rows["queries", "dev"] == [{"_id": md5(ASKED_DEV[0]), "text": ASKED_DEV[0]}]
    assert rows["qrels", "dev"] == tables()["qrels", "dev"][:1]
    assert "queries without a judgment (skipped): 1; " in done.stdout
    for other in (
        "queries whose id in the copy is not the MD5 of the text: 1; q1",
        "judgments of dev with a score of 0",
    ):
        assert (other in done.stdout) == (layout == "mteb")
    assert "describe this copy, not the published collection" in (tmp_path / "out/README.md").read_text("utf-8")


def test_copies_come_from_a_hub(tmp_path: Path) -> None:
    folders = {RANKING: tmp_path / "ranking", MTEB: mteb(tmp_path / "mteb", *ODD)[0]}
    rows_to(folders[RANKING] / "dev.jsonl.gz", tables()["dev", "dev"])
    (folders[RANKING] / "train.jsonl.gz").write_bytes(b"not looked at")
    (folders[RANKING] / "script.py").write_text("raise SystemExit")
    (folders[MTEB] / "dataset_infos.json").write_text("{}")
    folders |= dict(zip((C_MTEB, f"{C_MTEB}-qrels"), c_mteb(tmp_path / "c"), strict=True))
    with Hub() as hub:
        for name, folder in folders.items():
            paths = [path for path in folder.rglob("*") if path.is_file()]
            files = {path.relative_to(folder).as_posix(): Blob(path.read_bytes(), True) for path in paths}
            hub.create(name).add("a copy", files)

        def build_at(*words: str, code: int = 0) -> Done:
            more = ["--out", tmp_path / "out", "--format", "json"]
            return run_at(hub, tmp_path / "home", "builders", "official", "--copy", *words, *more, code=code)

        for judged, words in ((2, (f"{RANKING}/dev.jsonl.gz",)), (1, (MTEB,)), (1, (C_MTEB, f"{C_MTEB}-qrels"))):
            assert json.loads(build_at(*words).stdout)["copy"]["published"]["dev judgments"] == [judged, 9863]
            build_of = json.loads((tmp_path / "out" / "manifest.json").read_text())["builds"][0]
            assert build_of["options"] == {"copy": [*words]}
            assert all(source["name"].startswith(words[0].split("/")[0]) for source in build_of["sources"])
        fetched = {path.rpartition("/")[2] for method, path in hub.requests if method == "GET"}
        assert not fetched & {"train.jsonl.gz", "script.py", "dataset_infos.json"}
        for name, said in (
            (C_MTEB, "the copy has corpus, queries; expected queries with passages, or corpus, queries and qrels"),
            ("no/body", "has no dataset no/body"),
            (f"{MTEB}/nowhere", f"{MTEB} has no .jsonl, .jsonl.gz or .parquet file nowhere; set HF_ENDPOINT"),
        ):
            assert said in build_at(name, code=1).stderr
