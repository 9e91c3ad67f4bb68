"""Test official archives with bad lines, which stop the build or are skipped, and with harmful members."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from archive_server import member
from commands import Done, run
from official_archives import BOTH, DEV, ORIGINAL, PASSAGES, PREPROCESSED, TRAIN, lines, md5, original_files, tables

from builders.core.errors import InputError
from builders.official import blocks
from builders.official.build import build_official

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
    """Write both releases' files. ``added`` goes before line ``row`` (from 0) of one file, or ``instead`` of lines."""
    made.write_files(folder, BOTH)
    rows = BOTH[name].splitlines()
    rows[row : row + instead] = added
    (folder / name).write_bytes("".join(f"{each}\n" for each in rows).encode(errors="surrogateescape"))
    return folder


def official(source: Path, release: Path, *options: str, code: int = 0) -> Done:
    return run("builders", "official", "--archive", source, "--out", release, *options, code=code)


def official_stats(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / "stats.json").read_text(encoding="utf-8"))["official"]
    return found


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    build_official([made.write_files(folder / "in", BOTH)], folder / "release")
    return folder / "release"


@pytest.mark.parametrize(("name", "bad", "said"), BAD)
def test_a_bad_line_stops_the_build_or_is_skipped(tmp_path: Path, clean: Path, name: str, bad: str, said: str) -> None:
    source = write_with(tmp_path / "in", name, 1, bad)
    refused = official(source, tmp_path / "release", "--quiet", code=1).error
    assert refused.startswith(f"{source / name}:2: ") and said in refused
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # no partial output is left

    done = official(source, tmp_path / "release", "--skip-bad-lines")
    left_out = f"bad lines of {name} (left out)"
    assert f"{left_out}: 1; line 2: " in done.stdout and said in done.stdout
    assert tables(tmp_path / "release") == tables(clean)
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
    """Passages after a skipped line keep their ids, for any size of blocks."""
    files = {name: text for name, text in BOTH.items() if f"{ORIGINAL}/passage" not in name}
    files[MAP] = files[MAP].replace(md5(PASSAGES[10]), "f" * 32)  # an id that only the map has
    files[f"{PARTS}1"] = files[f"{PARTS}1"].replace(f"-\t\t{PASSAGES[5]}\t0", f"-\t{PASSAGES[5]}\t0")
    asked = files[f"{ORIGINAL}/train.json"].splitlines()
    files[f"{ORIGINAL}/train.json"] = "\n".join([asked[0], "{", *asked[2:]])
    source = made.write_files(tmp_path / "in", files)
    build_official([source], tmp_path / "one", skip_bad_lines=True)
    held = {row["_id"]: row["text"] for row in tables(tmp_path / "one")["corpus", "corpus"]}
    ids = [md5(text) for text in PASSAGES]
    ids[10] = "f" * 32
    assert list(held.items()) == [pair for number, pair in enumerate(zip(ids, PASSAGES, strict=True)) if number != 5]
    judged = {row["corpus-id"] for row in tables(tmp_path / "one")["qrels", "dev"]}
    assert judged == {ids[number] for number in DEV[FIRST]}  # the other question lost its only answer
    findings = official_stats(tmp_path / "one")["findings"]
    assert findings["judgments of dev whose passage the collection lacks (left out of the qrels)"] == 1
    questions = [question for number, question in enumerate(TRAIN) if number != 1]
    assert [row["query-id"] for row in tables(tmp_path / "one")["qrels", "train"]] == list(map(md5, questions))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 60)
    build_official([source], tmp_path / "two", skip_bad_lines=True)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def header(name: str, **values: Any) -> tarfile.TarInfo:
    return member(name, **values)[0]


def begun_by(*headers: bytes) -> bytes:
    """Return a tar with these unchecked headers and a good file."""
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
        build_official([tmp_path / "archive"], tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
