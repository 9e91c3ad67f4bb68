"""Damaged sources: raw rows, tables, questions, translations, embeddings, archives."""

import gzip
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import SAMPLE
from fuzzing import Reader, fuzz_of
from official_archives import original_files, preprocessed_files, write_files, write_tar
from releases import TEXTS, make_release, raw_row, tables, write_rows
from spoil import BYTES, JSON, JSON_LINES, PARQUET, TEXT

from builders.add import squad_files
from builders.add.ccovid import read_ccovid
from builders.add.cmedqa import read_cmedqa
from builders.add.crosslingual import read_pairs
from builders.add.raw_answers import write_answers
from builders.add.vectors import read_embeddings
from builders.annotate.rounds import Rule
from builders.annotate.translations import review_packages
from builders.core.files import sha256_of
from builders.core.typed import problem_of
from builders.official.assembly import build_from_archives
from builders.official.copies import Judgment, Ranked, Text, kind_of, rows_of
from builders.official.official_archives import find_members
from builders.release.rows import find_sources, parse_rows
from builders.similar.pairs import Names
from builders.similar.pairs import read_pairs as pairs_of
from builders.sources.lines import read_blocks
from builders.sources.source_files import find_files
from builders.sources.source_tables import find_tables
from builders.store.layout import text_id
from builders.store.reader import open_release
from builders.text.span_options import Options

QUESTIONS = {text_id(text): text for text in ("北京冬天冷吗", "饺子怎么煮", "高铁票, 提前几天买")}
IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]], np.float32)


def _raw(folder: Path) -> None:
    source = sorted(SAMPLE.rglob("*.json*"))[0]
    content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    (folder / "search.train.json").write_bytes(b"\n".join(content.split(b"\n")[:4]) + b"\n")
    (folder / "search.dev.json.gz").write_bytes(gzip.compress(b"\n".join(content.split(b"\n")[:2]), mtime=0))


def _read_raw(folder: Path) -> Any:
    blocks = read_blocks(find_sources([folder]))
    return [msgspec.to_builtins(row) for block in blocks for _, row in parse_rows(block, segmented=True)]


def _answers(folder: Path) -> None:
    row = raw_row(1, "手机进水怎么办", [TEXTS[:1]], ["先关机", "不要充电"])
    more = {"question_type": "ENTITY", "entity_answers": [["关机"], []], "yesno_answers": ["Yes", ""]}
    write_rows(folder / "search.dev.json", [row | more, row])
    make_release(folder / "release")


def _read_answers(folder: Path) -> Any:
    return write_answers(open_release(folder / "release"), [folder / "search.dev.json"], folder / "out", Options())


def _cmedqa(folder: Path) -> None:
    (folder / "question.csv").write_text('question_id,content\n1,"头疼, 怎么办"\n2,发烧\n', encoding="utf-8")
    (folder / "answer.csv").write_text('ans_id,question_id,content\n11,1,多休息\n21,2,"喝""水"""\n', encoding="gb18030")
    for split in ("train", "dev", "test"):
        (folder / f"{split}_candidates.txt").write_text("question_id,ans_id,cnt,label\n1,11,0,1\n2,21,1,0\n")


def _ccovid(folder: Path) -> None:
    (folder / "context.csv").write_text("docid\ttext\nd1\t北京市\nd2\t说\t明\n", encoding="utf-8")
    (folder / "train.csv").write_text(
        "id\tdocid\tquestion\tanswer\n1\td1\t什么？\t略\n2\td2\t怎么？\t略\n", encoding="utf-8"
    )
    rows = [{"docid": "d3", "context": "上海", "question": "几项？"}, {"docid": "d4", "context": "深圳"}]
    (folder / "more.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with zipfile.ZipFile(folder / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.csv", "id\tdocid\tquestion\tanswer\n3\td4\t谁？\t略\n")


def _squad(folder: Path) -> None:
    qas = [{"question": "在哪里？", "id": "x", "is_impossible": False}]
    paragraphs = [{"context": "长城在北京北边。", "qas": qas}, {"context": "黄河。", "qas": qas}]
    (folder / "train.json").write_text(json.dumps({"version": "v1", "data": [{"paragraphs": paragraphs}]}))
    (folder / "articles.txt").write_text("第一条新闻。第二句。\n\n第二条\u2028新闻。\n", encoding="utf-8")


def _read_squad(folder: Path) -> Any:
    train = find_files(folder / "train.json", squad_files._JSON, "")
    return squad_files.read_squad({"train": train}, find_files(folder / "articles.txt", squad_files._ANY, "")).queries


def _translations(folder: Path) -> None:
    lines = "".join(f'{key},"{text}","How, {text}"\n' for key, text in QUESTIONS.items())
    (folder / "table.csv").write_text(f"id,zh,english\n{lines}", encoding="utf-8")
    head = "package\tid\tzh\tmachine_translation\tenglish\n"
    rows = [f"dev-001\t{key}\t{text}\tm\tHow {text}\n" for key, text in QUESTIONS.items()]
    (folder / "packages.tsv").write_text(head + "".join(rows), encoding="utf-8")
    for reviewer in (1, 2):
        rows = [
            f"dev-001\t{key}\t{text}\tHow {text}\t{1 if reviewer == 1 else '对'}\n" for key, text in QUESTIONS.items()
        ]
        sheet = folder / f"sheet.{reviewer}.tsv"
        sheet.write_text("package\tid\tzh\tenglish\tcorrect\n" + "".join(rows), encoding="utf-8")


def _read_translations(folder: Path) -> Any:
    plain = list(read_pairs(find_tables([folder / "table.csv"]), QUESTIONS, "auto"))
    pairs = list(read_pairs(find_tables([folder / "packages.tsv"]), QUESTIONS, "auto"))
    sheets = find_tables([folder / "sheet.1.tsv", folder / "sheet.2.tsv"])
    return len(plain), review_packages(pairs, sheets, Rule())


def _vectors(folder: Path) -> None:
    pq.write_table(pa.table({"_id": IDS, "vector": VECTORS.tolist()}), folder / "x.parquet")
    rows = {**tables(), ("queries", "dev"): [{"_id": each, "text": each} for each in IDS]}
    release = open_release(make_release(folder / "release", rows))
    encoded = folder / "encoded"
    encoded.mkdir()
    np.save(encoded / "queries.npy", VECTORS)
    about = {"config": "queries", "split": "dev", "fingerprint": release.fingerprint("queries", "dev")}
    shards = [{"path": "queries.npy", "sha256": sha256_of(encoded / "queries.npy")}]
    (encoded / "manifest.json").write_text(json.dumps({**about, "shards": shards}))


def _read_vectors(folder: Path) -> Any:
    release = open_release(folder / "release")
    found = [block for name in ("encoded", "x.parquet") for block in read_embeddings(folder / name, release)]
    assert all(len(ids) == len(vectors) and vectors.ndim == 2 for ids, vectors in found)
    return len(found)


def _archives(folder: Path) -> None:
    write_tar(folder / "one.tar", original_files(), folder / "files", "w")
    write_tar(folder / "two.tar.gz", dict(list(preprocessed_files().items())[:4]), folder / "files")
    with tarfile.open(folder / "three.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("dureader-retrieval-test1/test1.json")
        info.pax_headers = {"comment": "x" * 200, "mtime": "1.5"}
        tar.addfile(info)


def _read_archives(folder: Path) -> Any:
    work = folder / "out"
    work.mkdir()
    try:
        members = find_members(sorted(folder.glob("*.tar*")), work)
        return {member.name: member.read(member.size) for member in members}
    except BaseException:
        for path in work.iterdir():
            path.unlink()
        work.rmdir()
        raise


def _official(folder: Path) -> None:
    files = original_files() | preprocessed_files()  # without dev.json, so that all others are read
    write_files(folder / "files", {name: text for name, text in files.items() if "/dev.json" not in name})


def _read_official(folder: Path) -> Any:
    build_from_archives([folder / "files"], folder / "out")
    return None


def _copies(folder: Path) -> None:
    row = {
        "query_id": "q",
        "query": "几点？",
        "positive_passages": [{"docid": "p", "text": "八点"}],
        "negative_passages": [],
    }
    (folder / "dev.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row, ensure_ascii=False)}\n", encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "几点？"}\n', encoding="utf-8")
    pq.write_table(pa.table({"id": ["p"], "text": ["八点"]}), folder / "corpus.parquet")
    pq.write_table(pa.table({"qid": ["q"], "pid": ["p"], "score": [1]}), folder / "qrels.parquet")


def _read_copies(folder: Path) -> Any:
    kinds = {"ranking": Ranked, "corpus": Text, "queries": Text, "qrels": Judgment}
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    found = {path.name: kind_of(path, path.name) for path in paths}
    return {path.name: [row for _, row in rows_of(path, kinds[found[path.name]])] for path in paths}


_PAIRS = [
    {"query": "高铁票提前几天买", "pos": [TEXTS[4]], "neg": TEXTS[:2]},
    {"query": "手机进水怎么办", "pos": TEXTS[5:], "neg": []},
]


def _pairs(folder: Path) -> None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _PAIRS), encoding="utf-8")


def _read_pairs(name: str) -> Callable[[Path], Any]:
    return lambda folder: [
        (pair.line, pair.questions, pair.passages) for pair in pairs_of(folder / name, Names(either=()))
    ]


def _as_lines(found: list[tuple[int, list[str], list[str]]], _: Any, folder: Path) -> bool:
    lines = (folder / "pairs.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line, questions, passages in found:
        said = json.dumps(json.loads(lines[line - 1]), ensure_ascii=False)
        assert all(json.dumps(text, ensure_ascii=False) in said for text in (*questions, *passages))
    return len(found) == sum(bool(line.strip()) for line in lines)


_ADD, _COPIES, _FILES = (
    "builders.add.",
    "builders.official.copies:_parquet_rows,_json_rows,_typed_rows,kind_of",
    "builders.sources.source_files:",
)
_TABLE = "builders.sources.source_tables:open_table"
_OFFICIAL = {"files/**/*.json": JSON_LINES, "files/**/*.tsv": TEXT, "files/**/*.format": TEXT}
_EMBEDDED = {"x.parquet": PARQUET + BYTES, "encoded/*.npy": BYTES, "encoded/*.json": JSON}
READERS = [
    Reader(
        "builders.similar.pairs:read_pairs,_read_lines", _pairs, {"pairs.jsonl": JSON_LINES}, _read_pairs("pairs.jsonl"), _as_lines,
    ),
    Reader(
        "builders.similar.pairs:_read_parquet", lambda f: pq.write_table(pa.Table.from_pylist(_PAIRS), f / "pairs.parquet"),
        {"pairs.parquet": PARQUET + BYTES}, _read_pairs("pairs.parquet"),
    ),
    Reader(_COPIES, _copies, {"*.jsonl": JSON_LINES, "*.parquet": PARQUET}, _read_copies),
    Reader(f"{_ADD}raw_answers:_read_records", _answers, {"*.json": JSON_LINES}, _read_answers),
    Reader(
        "builders.sources.lines:read_blocks builders.release.rows:parse_row", _raw,
        {"*.json": JSON_LINES, "*.gz": BYTES}, _read_raw,
    ),
    Reader(  # the files are joined before an error is found
        f"{_TABLE} {_ADD}cmedqa:_read_candidates,read_cmedqa", _cmedqa, {"*.*": TEXT},
        lambda f: read_cmedqa([f])[0].queries, names_files=False,
    ),
    Reader(
        f"{_ADD}ccovid:_rows,_json_rows,read_ccovid {_ADD}source_bars:source_bytes {_FILES}_members,open_bytes",
        _ccovid,
        {"*.csv": TEXT, "*.json": JSON_LINES, "*.zip": BYTES}, lambda f: read_ccovid([f])[0].queries, names_files=False,
    ),
    Reader(  # files without any question are one error
        f"{_ADD}squad_files:_paragraphs,_lines", _squad, {"*.json": JSON, "*.txt": TEXT}, _read_squad,
        names_files=False,
    ),
    Reader(
        f"{_ADD}crosslingual:read_pairs builders.annotate.translations:review_packages", _translations, {"*.*": TEXT},
        _read_translations,
    ),
    Reader(f"{_ADD}vectors:_encoded,_parquet", _vectors, _EMBEDDED, _read_vectors),
    Reader(
        "builders.official.official_archives:_unpack_members", _archives, {"*.tar": BYTES, "*.tar.gz": BYTES},
        _read_archives, lambda found, *_: not any(problem_of(name) for name in found),
    ),
    Reader("builders.official.questions:read_question_list", _official, _OFFICIAL, _read_official),
]  # fmt: skip
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
