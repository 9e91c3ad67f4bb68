"""The config ``answers``: built, added, kept true by other verbs, checked; figures by group; answer recall; export."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import SAMPLE, error_of, run
from hypothesis import given
from hypothesis import strategies as st
from releases import BUILD, json_lines, md5, raw_row, write_rows
from scipy.stats import kendalltau
from statsmodels.stats.multitest import multipletests

from builders.core.words import words
from builders.release.answer_records import merged
from builders.store.draft import draft_release
from builders.store.layout import ANSWERS
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run
from builders.text.answer_spans import contain_answer
from builders.text.span_f1 import is_positive
from builders.text.span_options import Options

Rows = list[dict[str, Any]]
MARCH = "北方的杏花三月开。"
ENTITY = {"question_type": "ENTITY", "entity_answers": [["三月"], ["四月", "五月"]]}
YES_NO = {"question_type": "YES_NO", "fact_or_opinion": "OPINION", "yesno_answers": ["Yes"]}
# Two dev questions, the first of them asked twice, a similar training question, and a test question.
RAW: dict[str, Rows] = {
    "search.dev.json": [
        raw_row(1, "杏花几月开", [[MARCH], ["油菜花也很好看"]], ["三月开。", "四月或者五月"]) | ENTITY,
        raw_row(2, "杏花香吗", [["杏花有淡淡的香味。"]], ["有淡淡的香味。"]) | YES_NO,
    ],
    "zhidao.dev.json": [raw_row(3, "杏花几月开", [[MARCH]], [MARCH, "三月开。", " "])],
    "search.train.json": [raw_row(5, "杏花几月开？", [[MARCH], ["第二个段落"]], ["三月开。"])],
    "search.test.json": [raw_row(4, "梨花几月开", [["梨花四月开。"]]) | {"question_type": "ENTITY"}],
}


def reaches(text: Sequence[str], answers: Sequence[Sequence[str]]) -> bool:
    """True if a span reaches F1 0.5 with an answer. The best span begins and ends with a token of the answer."""
    for answer in answers:
        places = [place for place, token in enumerate(text) if token in answer]
        for first, start in enumerate(places):
            left, shared = Counter(answer), 0
            for end in places[first:]:
                shared += left[text[end]] > 0
                left[text[end]] -= 1
                if 4 * shared >= end - start + 1 + len(answer):
                    return True
    return False


def answers(release: Path, split: str = "dev") -> dict[str, dict[str, Any]]:
    return {row["query_id"]: row for row in open_release(release).table("answers", split).to_pylist()}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, rows in RAW.items():
        write_rows(tmp_path / "raw" / name, rows)
    run("builders", "release", "--quiet", "--raw", tmp_path / "raw", "--out", tmp_path / "small", "--min-chars", 1)
    return tmp_path / "small"


def test_a_question_has_the_answers_of_all_its_rows(small: Path) -> None:
    first, second = answers(small).values()
    about = {key: value for key, value in first.items() if key != "answer_passages"}
    assert about == {
        "query_id": md5("杏花几月开"),
        "answers": ["三月开。", "四月或者五月", MARCH],  # each once, the blank one left out
        "question_type": "ENTITY",
        "fact_or_opinion": "FACT",
        "yesno_answers": [],
        "entity_answers": [["三月"], ["四月", "五月"], []],  # one list for each answer
        "source": "search",
    }
    assert first["answer_passages"] == [[md5(MARCH)], [], [md5(MARCH)]]
    assert (second["yesno_answers"], second["entity_answers"], second["fact_or_opinion"]) == (["Yes"], [], "OPINION")
    (test,) = answers(small, "test").values()
    assert (test["answers"], test["answer_passages"], test["question_type"]) == ([], [], "ENTITY")
    run("builders", "check", "--release", small)


@pytest.mark.parametrize("unit", ["word", "char"])
def test_passages_contain_the_answers_that_the_definition_says(sample_release: Path, unit: str, tmp_path: Path) -> None:
    given_, out = ("--raw", SAMPLE, "--release", sample_release, "--unit", unit), tmp_path / "out"
    run("builders", "add", "answers", *given_, "--out", out)
    tokens = words if unit == "word" else list
    for split in ("train", "dev"):
        judged = {
            row["query_id"]: row["positive_passages"] for row in open_release(out).table(split, split).to_pylist()
        }
        for query, row in answers(out, split).items():
            expected = [
                [each["docid"] for each in judged[query] if reaches(tokens(each["text"]), [tokens(answer)])]
                for answer in row["answers"]
            ]
            assert row["answer_passages"] == expected
    if unit == "word":  # the rule with which `release` writes the config
        assert all(answers(out, split) == answers(sample_release, split) for split in ("train", "dev", "test"))


TEXTS = st.lists(st.text("甲乙丙。", max_size=12), max_size=3)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(1, 3)]))
def test_answers_are_found_as_by_brute_force(rows: list[tuple[list[str], list[str]]], threshold: Fraction) -> None:
    found = contain_answer([row[0] for row in rows], [row[1] for row in rows], Options("char", threshold))
    assert found == [[is_positive(text, [*filter(None, own)], threshold) for text in texts] for texts, own in rows]


@given(st.lists(st.lists(st.tuples(st.sampled_from(["甲", "乙", " "]), st.sampled_from(["", "Yes"]))), max_size=3))
def test_merging_is_idempotent_and_keeps_lists_aligned(rows: list[list[tuple[str, str]]]) -> None:
    records = [
        {
            **{"answers": [a for a, _ in row], "yesno_answers": [y for _, y in row], "entity_answers": []},
            **dict.fromkeys(("question_type", "fact_or_opinion", "source"), ""),
        }
        for row in rows
    ]
    once = merged(records)
    assert merged([once]) == once and len(once["yesno_answers"]) in (0, len(once["answers"]))
    assert once["answers"] == [*dict.fromkeys(answer for row in rows for answer, _ in row if answer.strip())]


def test_every_release_takes_answers_by_the_text_of_the_question(sample_release: Path, tmp_path: Path) -> None:
    """The official files, a copy from a hub whose ids are numbers, and raw files of another split."""
    run(
        "builders",
        "export",
        "--quiet",
        "--release",
        sample_release,
        "--format",
        "official",
        "--out",
        tmp_path / "files",
    )
    run("builders", "official", "--archive", tmp_path / "files", "--out", tmp_path / "official")
    done = run(
        *("builders", "add", "answers", "--raw", SAMPLE / "search.dev.json", SAMPLE / "search.train.json"),
        *("--release", tmp_path / "official", "--out", tmp_path / "official"),  # in place
    )
    assert "train: 30 of 30 queries have a raw row\ndev: 16 of 16 queries have a raw row\ntest: 0 of 12" in done.stdout
    assert answers(tmp_path / "official") == answers(sample_release)
    assert ("answers", "test") not in open_release(tmp_path / "official").splits()
    run("builders", "check", "--release", tmp_path / "official")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda row: row.update(question="别的问题"),
            "error: {release}: no question of {raw} is a query of this release",
        ),
        (lambda row: row.update(answers="三月"), "error: {raw}:1: not a row of raw DuReader: Expected `array | null`"),
        (
            lambda row: row.update(entity_answers=["三月"]),
            "error: {raw}:1: not a row of raw DuReader: Expected `array`",
        ),
        (lambda row: row.update(question_type="WHY"), "WARNING dev: the type of 1 of 1 queries is unknown"),
        (lambda row: row.pop("answers"), "WARNING dev: 2 queries have a positive passage, but no answer"),
    ],
)
def test_bad_rows_are_one_line_or_a_counted_warning(
    small: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    row = json.loads(json.dumps(RAW["search.dev.json"][0]))
    change(row)
    raw = write_rows(tmp_path / "dev.json", [row])
    done = run("builders", "add", "answers", "--raw", raw, "--release", small, "--out", tmp_path / "out", code=None)
    line = message.format(raw=raw, release=small)
    assert (line in error_of(done)) if line.startswith("error") else (done.code == 0 and line in done.stderr)
    assert (tmp_path / "out").exists() is not line.startswith("error")


def test_other_verbs_keep_the_answers_true(sample_release: Path, tmp_path: Path) -> None:
    """Moved negatives join the passages of an answer. An extract keeps the answers of its queries."""
    release = open_release(sample_release)
    texts, rows = release.texts("corpus", "corpus"), answers(sample_release, "train")
    query, row = next((query, row) for query, row in rows.items() if row["answers"])
    known = {each["corpus-id"] for each in release.table("qrels", "train").to_pylist() if each["query-id"] == query}
    moved = [docid for docid, text in texts.items() if docid not in known][:40]
    negatives, scores, relabelled = tmp_path / "negatives.jsonl", tmp_path / "ce.run", tmp_path / "relabelled"
    negatives.write_text(json.dumps({"query-id": query, "negative-ids": moved}) + "\n")
    write_run(scores, [(query, [(docid, 9.0) for docid in moved])])
    step = ("annotate", "relabel", "move", "--release", sample_release, "--negatives", negatives, "--scores", scores)
    run("builders", *step, "--out", relabelled)
    expected = [
        [docid for docid in [*known, *moved] if reaches(words(texts[docid]), [words(answer)])]
        for answer in row["answers"]
    ]
    found = answers(relabelled, "train")
    assert [sorted(each) for each in found.pop(query)["answer_passages"]] == [sorted(each) for each in expected]
    assert found == {each: other for each, other in rows.items() if each != query}
    bm25 = tmp_path / "bm25.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--index", tmp_path / "index", "--out", bm25)
    run("builders", "add", "samples", "--release", sample_release, "--sizes", 40, "--out", tmp_path / "samples")
    extract = (
        "add",
        "samples",
        "--release",
        tmp_path / "samples",
        "--extract",
        "sample-40",
        "--out",
        tmp_path / "small",
    )
    run("builders", *extract)
    assert answers(tmp_path / "small") == answers(sample_release)
    for path in (relabelled, tmp_path / "small"):
        run("builders", "check", "--release", path)


def test_removed_training_questions_lose_their_answers(small: Path, tmp_path: Path) -> None:
    more = write_rows(tmp_path / "train.json", [raw_row(6, "怎么种树", [["挖一个坑"]], ["挖一个坑"])])
    raw = ("--raw", tmp_path / "raw", "--train", more)
    run("builders", "release", "--quiet", *raw, "--out", tmp_path / "two", "--min-chars", 1)
    assert answers(tmp_path / "two", "train").keys() == {md5("杏花几月开？"), md5("怎么种树")}
    run("builders", "similar", "--release", tmp_path / "two", "--out", tmp_path / "similar")
    assert answers(tmp_path / "similar", "train").keys() == {md5("怎么种树")}
    run("builders", "check", "--release", tmp_path / "similar")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda row: row["answer_passages"].append([]), "1 with lists of different lengths"),
        (lambda row: row.update(yesno_answers=["Yes", "No"] * 9), "1 with lists of different lengths"),
        (lambda row: row.update(question_type="WHY"), "1 of unknown type"),
        (lambda row: row["answer_passages"][0].append(md5("x")), "1 with an unjudged passage"),
        (lambda row: row.update(query_id=md5("x")), "1 with answers that queries lacks"),
    ],
)
def test_check_finds_answers_out_of_place(
    small: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], where: str
) -> None:
    rows = list(answers(small).values())
    change(rows[0])
    with draft_release(tmp_path / "spoiled", BUILD, open_release(small)) as draft:
        draft.write("answers", "dev", [pa.Table.from_pylist(rows, ANSWERS)])
    done = run("builders", "check", "--release", tmp_path / "spoiled", code=1)
    assert f"answers/dev: {where}" in done.stdout


# Figures by group, and answer recall


@pytest.fixture(scope="module")
def runs(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for analyzer in ("words", "bigrams", "characters"):
        given_ = ("--release", sample_release, "--analyzer", analyzer, "--index", folder / "index")
        run("baselines", "bm25", "--quiet", *given_, "--out", folder / f"{analyzer}.run")
    return [folder / f"{analyzer}.run" for analyzer in ("words", "bigrams", "characters")]


def evaluated(release: Path, runs: list[Path], *words_: object) -> list[dict[str, Any]]:
    given_ = ("evaluate", "--release", release, "--format", "json", *words_, *runs)
    return list(json.loads(run("baselines", *given_).stdout))


@pytest.mark.parametrize("by", ["question_type", "fact_or_opinion", "source", "query_length"])
def test_the_groups_together_are_the_whole(sample_release: Path, runs: list[Path], by: str) -> None:
    texts = open_release(sample_release).texts("queries", "dev")
    rows = answers(sample_release)
    for result in evaluated(sample_release, runs[:2], "--by", by):
        groups = result["by"]
        assert sum(group["queries"] for group in groups) == result["queries"]
        for key in ("MRR@10", "recall@1", "recall@50"):
            mean = sum(group["queries"] * group[key] for group in groups) / result["queries"]
            assert mean == pytest.approx(result["official"][key])
            assert all(low <= group[key] <= high for group in groups for low, high in [group["intervals"][key]])
        if by == "query_length":
            lengths = [(len(text) > 6) + (len(text) > 9) + (len(text) > 12) for text in texts.values()]
            titles = ("1-6 characters", "7-9 characters", "10-12 characters", "13 characters or more")
            expected = [(titles[n], lengths.count(n)) for n in sorted({*lengths})]
            assert len(expected) > 1 and [(group["group"], group["queries"]) for group in groups] == expected
        else:
            names = [row[by] for row in rows.values()]
            assert {group["group"]: group["queries"] for group in groups} == {n: names.count(n) for n in {*names}}


def test_differences_in_groups_have_holms_correction(sample_release: Path, runs: list[Path]) -> None:
    given_ = ("--release", sample_release, "--measure", "nDCG@10", "--by", "question_type", *runs)
    rows = json.loads(run("baselines", "compare", *given_, "--format", "json").stdout)["measures"]["nDCG@10"]["by"]
    assert len(rows) == 3 * len({row["group"] for row in rows})
    for test in ("t", "randomisation"):
        expected = multipletests([row[test]["p"] for row in rows], method="holm")[1]
        assert [row[test]["corrected"] for row in rows] == pytest.approx(expected)
    for form in ("text", "markdown"):
        assert "nDCG@10: pairs in groups" in run("baselines", "compare", *given_, "--format", form).stdout


def recalled(release: Path, path: Path) -> dict[str, dict[str, int | None]]:
    """Return the rank of the first passage with an answer and with an entity by brute force."""
    texts, found = open_release(release).texts("corpus", "corpus"), dict[str, dict[str, int | None]]()
    rankings = read_run(path).rankings
    for query, row in answers(release).items():
        tops = [texts[docid] for docid in rankings.get(query, [])[:50]]
        right = [reaches(words(text), [words(answer) for answer in row["answers"]]) for text in tops]
        entities = [entity for answer in row["entity_answers"] for entity in answer]
        inside = [any(entity in text for entity in entities) for text in tops]
        found[query] = {"answer": right.index(True) + 1 if any(right) else None}
        if entities:
            found[query]["entity"] = inside.index(True) + 1 if any(inside) else None
    return found


@pytest.mark.slow
def test_answer_recall_needs_no_judgment_and_is_that_of_brute_force(
    sample_release: Path, runs: list[Path], tmp_path: Path
) -> None:
    unlabelled = tmp_path / "unlabelled"
    with draft_release(unlabelled, BUILD, open_release(sample_release)) as draft:
        draft.drop("qrels", "dev")
        draft.drop("dev")
    table = tmp_path / "values.parquet"
    with_qrels = evaluated(sample_release, runs, "--answers", "--per-query", table)
    for path, result, other in zip(runs, with_qrels, evaluated(unlabelled, runs, "--answers"), strict=True):
        expected = recalled(sample_release, path)
        for kind in ("answer", "entity"):
            ranks = [row[kind] for row in expected.values() if kind in row]
            assert ranks and result["answers"][f"{kind} queries"] == len(ranks)
            for k in (1, 5, 10, 50):
                share = sum(rank is not None and rank <= k for rank in ranks) / len(ranks)
                assert result["answers"][f"{kind}@{k}"] == pytest.approx(share)
            reciprocal = sum(1 / rank for rank in ranks if rank and rank <= 10) / len(ranks)
            assert result["answers"][f"{kind} MRR@10"] == pytest.approx(reciprocal)
        agreement = result["answers"].pop("agreement")
        assert other == {"run": str(path), "answers": result["answers"]}
    orders = [[r["official"]["MRR@10"] for r in with_qrels], [r["answers"]["answer MRR@10"] for r in with_qrels]]
    assert agreement["tau"] == pytest.approx(kendalltau(*orders).statistic) and agreement["systems"] == 3
    stored = pq.read_table(table).to_pylist()
    first = recalled(sample_release, runs[0])
    assert all(first[row["query_id"]]["answer"] == row["first_answer_rank"] for row in stored[:16])
    assert "Kendall's tau" in run("baselines", "evaluate", "--release", sample_release, "--answers", *runs).stdout


def test_english_queries_have_the_answers_of_the_chinese_ones(sample_release: Path, tmp_path: Path) -> None:
    queries = open_release(sample_release).texts("queries", "dev")
    english, source = {query: f"question {n}" for n, query in enumerate(queries)}, tmp_path / "english.tsv"
    source.write_text("".join(f"{query}\t{text}\n" for query, text in english.items()))
    out = tmp_path / "out"
    run("builders", "add", "crosslingual", "--source", source, "--release", sample_release, "--out", out)
    positives = {row["query-id"]: row["corpus-id"] for row in open_release(out).table("qrels", "dev").to_pylist()}
    write_run(tmp_path / "perfect.run", [(md5(english[query]), [(docid, 1.0)]) for query, docid in positives.items()])
    more = ("--set", "crosslingual", "--by", "question_type", "--answers")
    (result,) = evaluated(out, [tmp_path / "perfect.run"], *more)
    assert result["official"]["recall@1"] == 1 and result["answers"]["answer queries"] == 16
    assert {group["group"] for group in result["by"]} == {row["question_type"] for row in answers(out).values()}


def test_a_release_without_answers_says_how_to_add_them(small: Path, tmp_path: Path) -> None:
    with draft_release(tmp_path / "without", BUILD, open_release(small)) as draft:
        draft.drop("answers")
    write_run(tmp_path / "a.run", [(md5("杏花香吗"), [(md5("杏花有淡淡的香味。"), 1.0)])])
    lacks = f"error: {tmp_path / 'without'}: has no answers/dev; `python -m builders add answers` adds the config"
    for words_ in (["--answers"], ["--by", "source"]):
        given_ = ("evaluate", "--release", tmp_path / "without", *words_, tmp_path / "a.run")
        assert error_of(run("baselines", *given_, code=1)) == lacks
    form = ("export", "--release", tmp_path / "without", "--format", "rag", "--run", tmp_path / "a.run")
    assert error_of(run("builders", *form, "--out", tmp_path / "rag", code=1)) == lacks
    test = ("evaluate", "--release", small, "--split", "test", "--answers", tmp_path / "a.run")
    assert "no query of the split has an answer" in error_of(run("baselines", *test, code=1))


def test_the_export_for_generation_has_question_answers_and_texts(
    sample_release: Path, runs: list[Path], tmp_path: Path
) -> None:
    form = ("export", "--release", sample_release, "--format", "rag", "--top-k", 3, "--run", runs[0])
    run("builders", *form, "--out", tmp_path / "rag")
    release, rows = open_release(sample_release), json_lines(tmp_path / "rag" / "rag" / "words.jsonl")
    queries, texts, known = release.texts("queries", "dev"), release.texts("corpus", "corpus"), answers(sample_release)
    rankings = read_run(runs[0]).rankings
    assert [row["query_id"] for row in rows] == [query for query in queries if rankings.get(query)]
    for row in rows:
        query = row["query_id"]
        assert row["question"] == queries[query] and row["answers"] == known[query]["answers"]
        assert row["question_type"] == known[query]["question_type"]
        assert [(p["docid"], p["rank"], p["text"]) for p in row["passages"]] == [
            (docid, rank, texts[docid]) for rank, docid in enumerate(rankings[query][:3], 1)
        ]


# The published rows


def test_answers_of_the_demo_rows_are_those_of_the_raw_file(demo_release: Path, shared_data: Path) -> None:
    for split, answered, answers_, inside in (("train", 89, 163, 148), ("dev", 89, 189, 167), ("test", 0, 0, 0)):
        with gzip.open(
            shared_data / "dureader-2.0-demo" / f"search.{split}.json.gz", "rt", "utf-8", newline="\n"
        ) as file:
            raw = {md5(row["question"]): row for row in map(json.loads, file)}
        found = answers(demo_release, split)
        for query, row in found.items():
            assert row["answers"] == raw[query].get("answers", [])
            assert row["yesno_answers"] == raw[query].get("yesno_answers", [])
            entities = raw[query].get("entity_answers", [])
            assert row["entity_answers"] == (entities if any(entities) else [])
            assert (row["question_type"], row["source"]) == (raw[query]["question_type"], "search")
            assert row["fact_or_opinion"] == raw[query]["fact_or_opinion"]
        stats = json.loads((demo_release / "stats.json").read_text())["answers"][split]
        assert (stats["answered"], stats["unanswered"], stats["answers"], stats["in_passages"]) == (
            *(answered, 0),
            *(answers_, inside),
        )
