"""Run files and judgments can be written and read again in every format."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, tables

from baselines.measure.qrels import read_qrels, release_qrels
from builders.core.errors import InputError
from builders.store import runs
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run


def test_a_written_run_has_trec_lines_ranked_by_score_then_id(tmp_path: Path) -> None:
    lines = write_run(tmp_path / "r.run", [("q1", [("b", 1.5), ("c", 2.0), ("a", 1.5)]), ("q2", [])], tag="t")
    assert lines == 3
    assert (tmp_path / "r.run").read_text() == "q1 Q0 c 1 2.0 t\nq1 Q0 a 2 1.5 t\nq1 Q0 b 3 1.5 t\n"


def test_a_gz_run_is_gzip_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.run.gz", "b.run.gz"):
        write_run(tmp_path / name, [("q", [("d", 0.5)])])
    assert gzip.decompress((tmp_path / "a.run.gz").read_bytes()).startswith(b"q Q0 d 1 0.5 ")
    assert (tmp_path / "a.run.gz").read_bytes() == (tmp_path / "b.run.gz").read_bytes()
    assert read_run(tmp_path / "a.run.gz").hits == {"q": [("d", 0.5)]}


@pytest.mark.parametrize("hit", [("a b", 1.0), ("", 1.0), ("a", float("nan")), ("a", float("inf"))])
def test_a_hit_that_trec_cannot_hold_is_refused_and_no_file_is_left(tmp_path: Path, hit: tuple[str, float]) -> None:
    with pytest.raises(InputError, match="a TREC run needs"):
        write_run(tmp_path / "r.run", [("q", [("ok", 2.0), hit])])
    assert list(tmp_path.iterdir()) == []


_ID = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=5).filter(
    lambda text: len(text.split()) == 1
)
_SCORE = st.floats(-1e30, 1e30, allow_nan=False) | st.floats(10, 10.000001)


@settings(deadline=None)
@given(hits=st.dictionaries(_ID, _SCORE, min_size=1, max_size=20))
def test_reading_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, hits: dict[str, float]) -> None:
    path = tmp_path_factory.mktemp("run") / "r.run"
    write_run(path, [("q", hits.items())])
    assert read_run(path).hits["q"] == sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))
    printed = [float(line.split(" ")[4]) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert printed == sorted(printed, reverse=True)


_ODD = ["", "\t", "\r", "\f", "a\x85b", '"', "a\0", "\ufeff", "9" * 30, "q", "Q0", "号"]
_NUMBERS = "1 2 02 0x1 +1 -1 1_0 1.5 .5 5. 1e3 1e999 nan inf"
_FIELDS = st.sampled_from([*_NUMBERS.split(" "), *_ODD])
_GOOD = st.tuples(st.sampled_from("qr"), st.just("Q0"), st.sampled_from("abc"), _FIELDS, _FIELDS, st.just("t"))
_LINES = st.lists(_GOOD.map(" ".join) | st.lists(_FIELDS, max_size=7).map(" ".join), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(lines=_LINES, end=st.sampled_from(["", "\n", "\n\n", " \n"]))
def test_a_block_that_is_parsed_at_once_has_the_hits_of_its_lines(lines: list[str], end: str) -> None:
    block = ("\n".join(lines) + end).encode()
    if table := runs._parsed(block):
        assert table.equals(runs._by_line(block, Path("some.run"), 1))


def test_trec_lines_are_ordered_by_score_then_rank(tmp_path: Path) -> None:
    path = tmp_path / "r.run"
    path.write_text("q Q0 a 2 1.0 t\nq\tQ0  b 1 1.0 t\n\nr Q0 c 1 0.5 t\nq Q0 d 3 7 t\nr Q0 e 2 0.4 t\n")
    assert read_run(path).rankings == {"q": ["d", "b", "a"], "r": ["c", "e"]}


def test_predictions_keep_their_order_and_length(tmp_path: Path) -> None:
    content = {"q": [f"p{n}" for n in range(60)], "empty": [], "one": ["x"], "twice": ["x", "x"]}
    path = tmp_path / "p.json"
    path.write_text("\n " + json.dumps(content))
    run = read_run(path)
    assert run.rankings == content
    scores = [score for _, score in run.hits["q"]]
    assert scores == sorted(set(scores), reverse=True)


WANTED = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}}
_ROWS = [
    {
        "question_id": q,
        "question": "",
        "answer_paragraphs": [{"paragraph_id": i, "paragraph_text": "\u2028"} for i in n],
    }
    for q, n in (("q1", "ab"), ("0", ""), ("q2", "c"))
]


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 a 1\nq1 0 b 1\nq1 0 x 0\nnone 0 y 0\n\nq2 0 c 1\n",
        "query-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tb\t1\nnone\tz\t-1\nq2\tc\t1\n",
        "\n".join(json.dumps(row, ensure_ascii=False) for row in _ROWS),
        json.dumps({"data": _ROWS}),
    ],
)
def test_every_form_of_judgments_gives_the_same_reference(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qrels"
    path.write_text(text, encoding="utf-8")
    qrels = read_qrels(path)
    assert (qrels.positives, qrels.pairs, qrels.without) == (WANTED, 3, 1)


def test_a_release_is_a_reference(tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"].append({"_id": "unjudged", "text": "?"})
    rows["qrels", "dev"].append({"query-id": "negative", "corpus-id": "x", "score": 0})
    release = open_release(make_release(tmp_path / "release", rows))
    qrels = release_qrels(release, "dev")
    assert qrels.positives == {
        md5("高铁票提前几天买"): {rows["corpus", "corpus"][4]["_id"]: 1},
        md5("手机进水怎么办"): {rows["corpus", "corpus"][5]["_id"]: 1},
    }
    assert qrels.without == 2
    with pytest.raises(InputError, match="no config 'qrels' with a split 'test'"):
        release_qrels(release, "test")


def test_each_set_has_its_own_judgments(whole_release: Path) -> None:
    opened = open_release(whole_release)
    asked = md5("感冒了怎么办")
    assert release_qrels(opened, "test", "cmedqa").positives == {
        asked: {md5(t): 1 for t in ("建议去医院检查。", "按时吃药。")}
    }
    english = md5("How early can I buy a train ticket")  # has the judgments of the original query
    assert release_qrels(opened, "dev", "crosslingual").positives == {english: {md5(TEXTS[4]): 1}}
    with pytest.raises(InputError, match="ccovid-queries"):
        release_qrels(opened, "dev", "ccovid")
