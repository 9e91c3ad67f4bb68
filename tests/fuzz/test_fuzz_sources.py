"""Damaged sources: raw rows, tables, questions, translations, embeddings, archives."""

import gzip
import itertools
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
from builders.annotate.rounds import QualityRule
from builders.annotate.translations import review_packages
from builders.core.read_files import sha256_of
from builders.core.typed import problem_of
from builders.official.assembly import build_from_archives
from builders.official.copies import build_copy
from builders.official.copy_rows import Judgment, Ranked, Text, kind_of, rows_of
from builders.official.official_archives import find_members
from builders.release.rows import find_sources, parse_rows
from builders.similar.pairs import Names
from builders.similar.pairs import read_pairs as read_training_pairs
from builders.sources.lines import read_blocks
from builders.sources.source_files import find_files
from builders.sources.source_tables import find_tables
from builders.store.layout import text_id
from builders.store.reader import open_release
from builders.text.span_options import SpanOptions

QUESTIONS = {text_id(text): text for text in ("北京冬天冷吗", "饺子怎么煮", "高铁票, 提前几天买")}
QUERY_IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]], np.float32)


def write_raw_files(folder: Path) -> None:
    """Write the first rows of the embedded sample as JSON lines and gzipped."""
    source = sorted(SAMPLE.rglob("*.json*"))[0]
    content = source.read_bytes()
    if source.suffix == ".gz":
        content = gzip.decompress(content)
    # A few rows, because each case reads the files again.
    lines = content.split(b"\n")
    (folder / "search.train.json").write_bytes(b"\n".join(lines[:4]) + b"\n")
    (folder / "search.dev.json.gz").write_bytes(gzip.compress(b"\n".join(lines[:2]), mtime=0))


def read_raw_files(folder: Path) -> Any:
    """Read the raw rows of both files."""
    rows = []
    for block in read_blocks(find_sources([folder])):
        rows += [msgspec.to_builtins(row) for _, row in parse_rows(block, segmented=True)]
    return rows


def write_raw_answers(folder: Path) -> None:
    """Write a release, and two raw rows, one of them with all fields of answers."""
    row = raw_row(1, "手机进水怎么办", [TEXTS[:1]], ["先关机", "不要充电"])
    answer_fields = {"question_type": "ENTITY", "entity_answers": [["关机"], []], "yesno_answers": ["Yes", ""]}
    write_rows(folder / "search.dev.json", [row | answer_fields, row])
    make_release(folder / "release")


def read_raw_answers(folder: Path) -> Any:
    """Add the answers of the raw rows to the release."""
    release = open_release(folder / "release")
    return write_answers(release, [folder / "search.dev.json"], folder / "out", SpanOptions())


def write_cmedqa(folder: Path) -> None:
    """Write the files of cMedQA, one of them in another encoding."""
    (folder / "question.csv").write_text('question_id,content\n1,"头疼, 怎么办"\n2,发烧\n', encoding="utf-8")
    (folder / "answer.csv").write_text('ans_id,question_id,content\n11,1,多休息\n21,2,"喝""水"""\n', encoding="gb18030")
    for split in ("train", "dev", "test"):
        (folder / f"{split}_candidates.txt").write_text("question_id,ans_id,cnt,label\n1,11,0,1\n2,21,1,0\n")


def write_ccovid(folder: Path) -> None:
    """Write the files of CCOVID as tables, JSON lines and a ZIP archive."""
    (folder / "context.csv").write_text("docid\ttext\nd1\t北京市\nd2\t说\t明\n", encoding="utf-8")
    questions = "id\tdocid\tquestion\tanswer\n1\td1\t什么？\t略\n2\td2\t怎么？\t略\n"
    (folder / "train.csv").write_text(questions, encoding="utf-8")
    rows = [{"docid": "d3", "context": "上海", "question": "几项？"}, {"docid": "d4", "context": "深圳"}]
    (folder / "more.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with zipfile.ZipFile(folder / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.csv", "id\tdocid\tquestion\tanswer\n3\td4\t谁？\t略\n")


def write_squad(folder: Path) -> None:
    """Write a file of SQuAD, and articles as lines."""
    questions = [{"question": "在哪里？", "id": "x", "is_impossible": False}]
    paragraphs = [{"context": "长城在北京北边。", "qas": questions}, {"context": "黄河。", "qas": questions}]
    content = {"version": "v1", "data": [{"paragraphs": paragraphs}]}
    (folder / "train.json").write_text(json.dumps(content))
    (folder / "articles.txt").write_text("第一条新闻。第二句。\n\n第二条\u2028新闻。\n", encoding="utf-8")


def read_squad(folder: Path) -> Any:
    """Read the questions of the file and the articles."""
    train_files = find_files(folder / "train.json", squad_files._JSON, "")
    article_files = find_files(folder / "articles.txt", squad_files._ANY, "")
    return squad_files.read_squad({"train": train_files}, article_files).queries


def write_translations(folder: Path) -> None:
    """Write a table of translations, packages of a translator, and the sheets of two reviewers."""
    table_text = "id,zh,english\n"
    package_text = "package\tid\tzh\tmachine_translation\tenglish\n"
    for query_id, text in QUESTIONS.items():
        table_text += f'{query_id},"{text}","How, {text}"\n'
        package_text += f"dev-001\t{query_id}\t{text}\tm\tHow {text}\n"
    (folder / "table.csv").write_text(table_text, encoding="utf-8")
    (folder / "packages.tsv").write_text(package_text, encoding="utf-8")
    # The reviewers write "correct" in different ways.
    for reviewer, verdict in ((1, "1"), (2, "对")):
        sheet_text = "package\tid\tzh\tenglish\tcorrect\n"
        for query_id, text in QUESTIONS.items():
            sheet_text += f"dev-001\t{query_id}\t{text}\tHow {text}\t{verdict}\n"
        (folder / f"sheet.{reviewer}.tsv").write_text(sheet_text, encoding="utf-8")


def read_translations(folder: Path) -> Any:
    """Read the table, and review the packages by the sheets."""
    table_pairs = list(read_pairs(find_tables([folder / "table.csv"]), QUESTIONS, "auto"))
    package_pairs = list(read_pairs(find_tables([folder / "packages.tsv"]), QUESTIONS, "auto"))
    sheets = find_tables([folder / "sheet.1.tsv", folder / "sheet.2.tsv"])
    return len(table_pairs), review_packages(package_pairs, sheets, QualityRule())


def write_vectors(folder: Path) -> None:
    """Write vectors of three questions as Parquet, and as the output of `encode`."""
    pq.write_table(pa.table({"_id": QUERY_IDS, "vector": VECTORS.tolist()}), folder / "x.parquet")
    rows = tables()
    rows["queries", "dev"] = [{"_id": query_id, "text": query_id} for query_id in QUERY_IDS]
    release = open_release(make_release(folder / "release", rows))
    encoded_folder = folder / "encoded"
    encoded_folder.mkdir()
    np.save(encoded_folder / "queries.npy", VECTORS)
    manifest = {
        "config": "queries",
        "split": "dev",
        "fingerprint": release.fingerprint("queries", "dev"),
        "shards": [{"path": "queries.npy", "sha256": sha256_of(encoded_folder / "queries.npy")}],
    }
    (encoded_folder / "manifest.json").write_text(json.dumps(manifest))


def read_vectors(folder: Path) -> Any:
    """Read both kinds of vectors, and return the number of blocks."""
    release = open_release(folder / "release")
    blocks = list(read_embeddings(folder / "encoded", release))
    blocks += read_embeddings(folder / "x.parquet", release)
    for query_ids, vectors in blocks:
        assert len(query_ids) == len(vectors)
        assert vectors.ndim == 2
    return len(blocks)


def write_archives(folder: Path) -> None:
    """Write archives of the official files: plain, gzipped, and with PAX headers."""
    write_tar(folder / "one.tar", original_files(), folder / "files", "w")
    first_files = dict(itertools.islice(preprocessed_files().items(), 4))
    write_tar(folder / "two.tar.gz", first_files, folder / "files")
    # PAX headers come before the member that they describe.
    with tarfile.open(folder / "three.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("dureader-retrieval-test1/test1.json")
        info.pax_headers = {"comment": "x" * 200, "mtime": "1.5"}
        tar.addfile(info)


def read_archives(folder: Path) -> Any:
    """Read all members of the archives. After an error, the work folder is removed, as the verb does."""
    work_folder = folder / "out"
    work_folder.mkdir()
    try:
        members = find_members(sorted(folder.glob("*.tar*")), work_folder)
        return {member.name: member.read(member.size) for member in members}
    except BaseException:
        for path in work_folder.iterdir():
            path.unlink()
        work_folder.rmdir()
        raise


def are_safe_names(contents: dict[str, bytes], *_: object) -> bool:
    """Accept members whose names stay inside the archive's folder."""
    return not any(problem_of(name) for name in contents)


def write_official_files(folder: Path) -> None:
    """Write the official files without dev.json, so that all others are read."""
    files = original_files() | preprocessed_files()
    write_files(folder / "files", {name: text for name, text in files.items() if "/dev.json" not in name})


def read_official_files(folder: Path) -> Any:
    """Build a release from the official files."""
    build_from_archives([folder / "files"], folder / "out")
    return None


def write_copies(folder: Path) -> None:
    """Write a copy of a published dataset: rankings, queries, corpus and judgments."""
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


def read_copies(folder: Path) -> Any:
    """Read the rows of each file as its kind requires."""
    row_types = {"ranking": Ranked, "corpus": Text, "queries": Text, "qrels": Judgment}
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    file_kinds = {path: kind_of(path, path.name) for path in paths}
    rows_by_name = {}
    for path, file_kind in file_kinds.items():
        rows_by_name[path.name] = [row for _, row in rows_of(path, row_types[file_kind])]
    return rows_by_name


def write_foreign_copies(folder: Path) -> None:
    """Write a copy in MS MARCO's format, and a copy in TREC's."""
    ms_marco, trec = folder / "ms-marco", folder / "trec"
    ms_marco.mkdir()
    trec.mkdir()
    (ms_marco / "collection.tsv").write_text("1\t八点\n2\t九点\n", encoding="utf-8")
    (ms_marco / "queries.dev.tsv").write_text("7\t几点\n", encoding="utf-8")
    (ms_marco / "qrels.dev.tsv").write_text("query-id\tcorpus-id\tscore\n7\t1\t2\n7\t2\t0\n")
    document = "<DOC>\n<DOCNO> D-1 </DOCNO>\n<TITLE>八</TITLE>\n<TEXT>\n八点\n</TEXT>\n</DOC>\n"
    (trec / "docs.xml").write_text(document, encoding="utf-8")
    topic = "<top>\n<num> Number: 7\n<title> 几点\n<desc> Description:\n时间\n</top>\n"
    (trec / "topics.txt").write_text(topic, encoding="utf-8")
    (trec / "qrels.txt").write_text("7 0 D-1 1\n")


def build_copy_of(name: str) -> Callable[[Path], Any]:
    """Return a function that builds a release of a copy, and returns the texts of its passages."""

    def build_and_read(folder: Path) -> Any:
        build_copy([str(folder / name)], folder / "out")
        return sorted(open_release(folder / "out").texts("corpus", "corpus").values())

    return build_and_read


def are_texts_of_collection(texts: list[str], _: Any, folder: Path) -> bool:
    """Accept texts that are in the collection."""
    collection = (folder / "ms-marco" / "collection.tsv").read_bytes().decode()
    return all(text in collection for text in texts)


_PAIR_ROWS = [
    {"query": "高铁票提前几天买", "pos": [TEXTS[4]], "neg": TEXTS[:2]},
    {"query": "手机进水怎么办", "pos": TEXTS[5:], "neg": []},
]


def write_pairs(folder: Path) -> None:
    """Write training pairs as JSON lines."""
    lines = [json.dumps(row) + "\n" for row in _PAIR_ROWS]
    (folder / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")


def read_pairs_of(name: str) -> Callable[[Path], Any]:
    """Return a function that reads the training pairs of a file."""

    def read_pairs_of_file(folder: Path) -> Any:
        pairs = read_training_pairs(folder / name, Names(either=()))
        return [(pair.line, pair.questions, pair.passages) for pair in pairs]

    return read_pairs_of_file


def are_pairs_of_lines(pairs: list[tuple[int, list[str], list[str]]], _: Any, folder: Path) -> bool:
    """Accept a pair of each line, whose texts are in the line."""
    lines = (folder / "pairs.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line_number, questions, passages in pairs:
        line_text = json.dumps(json.loads(lines[line_number - 1]), ensure_ascii=False)
        for text in questions + passages:
            assert json.dumps(text, ensure_ascii=False) in line_text
    full_lines = [line for line in lines if line.strip()]
    return len(pairs) == len(full_lines)


READERS = [
    Reader(
        "builders.similar.pairs:read_pairs,_read_lines",
        make=write_pairs,
        spoils={"pairs.jsonl": JSON_LINES},
        read=read_pairs_of("pairs.jsonl"),
        right=are_pairs_of_lines,
    ),
    Reader(
        "builders.similar.pairs:_read_parquet",
        make=lambda folder: pq.write_table(pa.Table.from_pylist(_PAIR_ROWS), folder / "pairs.parquet"),
        spoils={"pairs.parquet": PARQUET + BYTES},
        read=read_pairs_of("pairs.parquet"),
    ),
    Reader(
        "builders.official.copy_rows:_parquet_rows,_json_rows,_typed_rows,kind_of",
        make=write_copies,
        spoils={"*.jsonl": JSON_LINES, "*.parquet": PARQUET},
        read=read_copies,
    ),
    Reader(
        "builders.official.copy_rows:_table_rows,rows_with_bar builders.official.copy_files:find_copy_files",
        make=write_foreign_copies,
        spoils={"ms-marco/*.tsv": TEXT},
        read=build_copy_of("ms-marco"),
        right=are_texts_of_collection,
    ),
    Reader(
        "builders.official.copy_rows:_elements,_document_row,_topic_row,_table_rows",
        make=write_foreign_copies,
        spoils={"trec/*.*": TEXT},
        read=build_copy_of("trec"),
        name="TREC's markup",
    ),
    Reader(
        "builders.add.raw_answers:_read_records",
        make=write_raw_answers,
        spoils={"*.json": JSON_LINES},
        read=read_raw_answers,
    ),
    Reader(
        "builders.sources.lines:read_blocks builders.release.rows:parse_row",
        make=write_raw_files,
        spoils={"*.json": JSON_LINES, "*.gz": BYTES},
        read=read_raw_files,
    ),
    Reader(
        "builders.sources.source_tables:open_table builders.add.cmedqa:_read_candidates,read_cmedqa",
        make=write_cmedqa,
        spoils={"*.*": TEXT},
        read=lambda folder: read_cmedqa([folder])[0].queries,
        names_files=False,  # the files are joined before an error is found
    ),
    Reader(
        "builders.add.ccovid:_rows,_json_rows,read_ccovid builders.sources.source_bars:source_bytes"
        " builders.sources.source_files:_members,open_bytes",
        make=write_ccovid,
        spoils={"*.csv": TEXT, "*.json": JSON_LINES, "*.zip": BYTES},
        read=lambda folder: read_ccovid([folder])[0].queries,
        names_files=False,
    ),
    Reader(
        "builders.add.squad_files:_paragraphs,_lines",
        make=write_squad,
        spoils={"*.json": JSON, "*.txt": TEXT},
        read=read_squad,
        names_files=False,  # files without any question are one error
    ),
    Reader(
        "builders.add.crosslingual:read_pairs builders.annotate.translations:review_packages",
        make=write_translations,
        spoils={"*.*": TEXT},
        read=read_translations,
    ),
    Reader(
        "builders.add.vectors:_encoded,_parquet",
        make=write_vectors,
        spoils={"x.parquet": PARQUET + BYTES, "encoded/*.npy": BYTES, "encoded/*.json": JSON},
        read=read_vectors,
    ),
    Reader(
        "builders.official.official_archives:_unpack_members",
        make=write_archives,
        spoils={"*.tar": BYTES, "*.tar.gz": BYTES},
        read=read_archives,
        right=are_safe_names,
    ),
    Reader(
        "builders.official.questions:read_question_list",
        make=write_official_files,
        spoils={"files/**/*.json": JSON_LINES, "files/**/*.tsv": TEXT, "files/**/*.format": TEXT},
        read=read_official_files,
    ),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
