"""The config ``answers``: built, added, kept true by other verbs, checked; figures by group; answer recall; export."""

import gzip
import itertools
import json
import shutil
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

from builders.core.words import split_words
from builders.release.answer_records import merge_records
from builders.store.draft import draft_release
from builders.store.layout import ANSWERS
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run
from builders.text.answer_spans import contain_answer
from builders.text.span_f1 import is_positive
from builders.text.span_options import SpanOptions

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
        answer_positions = [position for position, token in enumerate(text) if token in answer]
        for number, start in enumerate(answer_positions):
            unmatched_tokens = Counter(answer)
            shared_tokens = 0
            for end in answer_positions[number:]:
                if unmatched_tokens[text[end]] > 0:
                    shared_tokens += 1
                unmatched_tokens[text[end]] -= 1
                # F1 is 2 * shared / (length of the span + length of the answer).
                if 4 * shared_tokens >= end - start + 1 + len(answer):
                    return True
    return False


def answers(release: Path, split: str = "dev") -> dict[str, dict[str, Any]]:
    """Return the rows of the config ``answers`` by query id."""
    return {row["query_id"]: row for row in open_release(release).table("answers", split).to_pylist()}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A release of ``RAW``."""
    for name, rows in RAW.items():
        write_rows(tmp_path / "raw" / name, rows)
    run("builders", "release", "--quiet", "--raw", tmp_path / "raw", "--out", tmp_path / "small", "--min-chars", 1)
    return tmp_path / "small"


def test_a_question_has_the_answers_of_all_its_rows(small: Path) -> None:
    first_row, second_row = answers(small).values()
    assert first_row.pop("answer_passages") == [[md5(MARCH)], [], [md5(MARCH)]]
    assert first_row == {
        "query_id": md5("杏花几月开"),
        "answers": ["三月开。", "四月或者五月", MARCH],  # without repeated and blank answers
        "question_type": "ENTITY",
        "fact_or_opinion": "FACT",
        "yesno_answers": [],
        "entity_answers": [["三月"], ["四月", "五月"], []],  # one list for each answer
        "source": "search",
    }
    assert (second_row["yesno_answers"], second_row["entity_answers"]) == (["Yes"], [])
    assert second_row["fact_or_opinion"] == "OPINION"
    (test_row,) = answers(small, "test").values()
    assert (test_row["answers"], test_row["answer_passages"], test_row["question_type"]) == ([], [], "ENTITY")
    run("builders", "check", "--release", small)


@pytest.mark.parametrize("unit", ["word", "char"])
def test_passages_contain_the_answers_that_the_definition_says(sample_release: Path, unit: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--raw", SAMPLE, "--release", sample_release, "--unit", unit]
    run("builders", "add", "answers", options, "--out", out)
    split_text = split_words if unit == "word" else list
    for split in ("train", "dev"):
        rows = answers(out, split)
        for joined_row in open_release(out).table(split, split).to_pylist():
            row = rows.pop(joined_row["query_id"], {"answers": [], "answer_passages": []})
            for answer, passage_ids in zip(row["answers"], row["answer_passages"], strict=True):
                expected_ids = []
                for passage in joined_row["positive_passages"]:
                    if reaches(split_text(passage["text"]), [split_text(answer)]):
                        expected_ids.append(passage["docid"])
                assert passage_ids == expected_ids
        assert rows == {}  # each query has a joined row
    if unit == "word":  # the rule with which `release` writes the config
        assert all(answers(out, split) == answers(sample_release, split) for split in ("train", "dev", "test"))


TEXTS = st.lists(st.text("甲乙丙。", max_size=12), max_size=3)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(1, 3)]))
def test_answers_are_found_as_by_brute_force(rows: list[tuple[list[str], list[str]]], threshold: Fraction) -> None:
    texts_by_row = [texts for texts, _ in rows]
    answers_by_row = [row_answers for _, row_answers in rows]
    contains_by_row = contain_answer(texts_by_row, answers_by_row, SpanOptions("char", threshold))
    assert len(contains_by_row) == len(rows)
    for (texts, row_answers), contains in zip(rows, contains_by_row, strict=True):
        nonempty_answers = [answer for answer in row_answers if answer]
        assert contains == [is_positive(text, nonempty_answers, threshold) for text in texts]


@given(st.lists(st.lists(st.tuples(st.sampled_from(["甲", "乙", " "]), st.sampled_from(["", "Yes"]))), max_size=3))
def test_merging_is_idempotent_and_keeps_lists_aligned(rows: list[list[tuple[str, str]]]) -> None:
    records = []
    all_answers = []
    for row in rows:
        row_answers = [answer for answer, _ in row]
        all_answers += row_answers
        record = {"answers": row_answers, "yesno_answers": [yes_no for _, yes_no in row], "entity_answers": []}
        records.append(record | {"question_type": "", "fact_or_opinion": "", "source": ""})
    merged_record = merge_records(records)
    assert merge_records([merged_record]) == merged_record
    assert len(merged_record["yesno_answers"]) in (0, len(merged_record["answers"]))
    distinct_answers = dict.fromkeys(answer for answer in all_answers if answer.strip())
    assert merged_record["answers"] == list(distinct_answers)


def test_every_release_takes_answers_by_the_text_of_the_question(sample_release: Path, tmp_path: Path) -> None:
    """The official files, a copy from a hub whose ids are numbers, and raw files of another split."""
    files = tmp_path / "files"
    run("builders", "export", "--quiet", "--release", sample_release, "--format", "official", "--out", files)
    official = tmp_path / "official"
    run("builders", "official", "--archive", files, "--out", official)
    # The answers are added in place.
    raw_files = [SAMPLE / "search.dev.json", SAMPLE / "search.train.json"]
    done = run("builders", "add", "answers", "--raw", raw_files, "--release", official, "--out", official)
    assert "train: 30 of 30 queries have a raw row\ndev: 16 of 16 queries have a raw row\ntest: 0 of 12" in done.stdout
    assert answers(official) == answers(sample_release)
    assert ("answers", "test") not in open_release(official).splits()
    run("builders", "check", "--release", official)


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
    if line.startswith("error"):
        assert line in error_of(done)
        assert not (tmp_path / "out").exists()
    else:
        assert done.code == 0 and line in done.stderr
        assert (tmp_path / "out").exists()


def test_negatives_that_become_positives_join_the_passages_of_an_answer(sample_release: Path, tmp_path: Path) -> None:
    release = open_release(sample_release)
    texts = release.texts("corpus", "corpus")
    rows = answers(sample_release, "train")
    query_id = next(query_id for query_id, row in rows.items() if row["answers"])
    judgments = release.table("qrels", "train").to_pylist()
    judged_ids = {judgment["corpus-id"] for judgment in judgments if judgment["query-id"] == query_id}
    negative_ids = [passage_id for passage_id in texts if passage_id not in judged_ids][:40]
    negatives = tmp_path / "negatives.jsonl"
    negatives.write_text(json.dumps({"query-id": query_id, "negative-ids": negative_ids}) + "\n")
    scores = tmp_path / "ce.run"
    write_run(scores, [(query_id, [(passage_id, 9.0) for passage_id in negative_ids])])
    relabelled = tmp_path / "relabelled"
    options = ["--release", sample_release, "--negatives", negatives, "--scores", scores, "--out", relabelled]
    run("builders", "annotate", "relabel", "move", options)
    relabelled_rows = answers(relabelled, "train")
    # The row of this question has the new passages; the other rows are unchanged.
    old_row = rows.pop(query_id)
    new_row = relabelled_rows.pop(query_id)
    for answer, passage_ids in zip(old_row["answers"], new_row["answer_passages"], strict=True):
        positive_ids = list(judged_ids) + negative_ids
        expected_ids = [docid for docid in positive_ids if reaches(split_words(texts[docid]), [split_words(answer)])]
        assert sorted(passage_ids) == sorted(expected_ids)
    assert relabelled_rows == rows
    run("builders", "check", "--release", relabelled)


def test_an_extract_has_the_answers_of_its_queries(sample_release: Path, tmp_path: Path) -> None:
    bm25 = tmp_path / "bm25.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--index", tmp_path / "index", "--out", bm25)
    samples = tmp_path / "samples"
    run("builders", "add", "samples", "--release", sample_release, "--sizes", 40, "--out", samples)
    extract = tmp_path / "small"
    run("builders", "add", "samples", "--release", samples, "--extract", "sample-40", "--out", extract)
    assert answers(extract) == answers(sample_release)
    run("builders", "check", "--release", extract)


def test_removed_training_questions_lose_their_answers(small: Path, tmp_path: Path) -> None:
    train_rows = write_rows(tmp_path / "train.json", [raw_row(6, "怎么种树", [["挖一个坑"]], ["挖一个坑"])])
    options = ["--raw", tmp_path / "raw", "--train", train_rows, "--out", tmp_path / "two", "--min-chars", 1]
    run("builders", "release", "--quiet", options)
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
    """Three runs of the dev questions."""
    folder = tmp_path_factory.mktemp("runs")
    run_paths = []
    for analyzer in ("words", "bigrams", "characters"):
        run_path = folder / f"{analyzer}.run"
        options = ["--release", sample_release, "--analyzer", analyzer, "--index", folder / "index"]
        run("baselines", "bm25", "--quiet", options, "--out", run_path)
        run_paths.append(run_path)
    return run_paths


def evaluated(release: Path, runs: list[Path], *options: object) -> list[dict[str, Any]]:
    """Return the results of `evaluate` for each run."""
    done = run("baselines", "evaluate", "--release", release, "--format", "json", options, runs)
    return list(json.loads(done.stdout))


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
            for group in groups:
                low, high = group["intervals"][key]
                assert low <= group[key] <= high
        sizes = {group["group"]: group["queries"] for group in groups}
        if by == "query_length":
            expected_sizes = dict(Counter(length_group(text) for text in texts.values()))
            assert len(sizes) > 1
            # The groups are sorted by length.
            assert list(sizes) == [title for title in LENGTH_GROUPS if title in expected_sizes]
        else:
            expected_sizes = dict(Counter(row[by] for row in rows.values()))
        assert sizes == expected_sizes


LENGTH_GROUPS = ["1-6 characters", "7-9 characters", "10-12 characters", "13 characters or more"]


def length_group(text: str) -> str:
    """Return the group of a question's length."""
    for longest, title in zip((6, 9, 12), LENGTH_GROUPS, strict=False):
        if len(text) <= longest:
            return title
    return LENGTH_GROUPS[-1]


def test_differences_in_groups_have_holms_correction(sample_release: Path, runs: list[Path]) -> None:
    options = ["--release", sample_release, "--measure", "nDCG@10", "--by", "question_type", *runs]
    comparison = json.loads(run("baselines", "compare", options, "--format", "json").stdout)
    rows = comparison["measures"]["nDCG@10"]["by"]
    assert len(rows) == 3 * len({row["group"] for row in rows})
    for test in ("t", "randomisation"):
        p_values = [row[test]["p"] for row in rows]
        corrected_values = multipletests(p_values, method="holm")[1]
        assert [row[test]["corrected"] for row in rows] == pytest.approx(corrected_values)
    for form in ("text", "markdown"):
        assert "nDCG@10: pairs in groups" in run("baselines", "compare", options, "--format", form).stdout


def recalled(release: Path, path: Path) -> dict[str, dict[str, int | None]]:
    """Return the rank of the first passage with an answer and with an entity by brute force."""
    texts = open_release(release).texts("corpus", "corpus")
    rankings = read_run(path).rankings
    ranks_by_query: dict[str, dict[str, int | None]] = {}
    for query_id, row in answers(release).items():
        top_texts = [texts[passage_id] for passage_id in rankings.get(query_id, [])[:50]]
        answer_tokens = [split_words(answer) for answer in row["answers"]]
        ranks_by_query[query_id] = {
            "answer": first_rank([reaches(split_words(text), answer_tokens) for text in top_texts])
        }
        entities = list(itertools.chain.from_iterable(row["entity_answers"]))
        if entities:
            has_entity = []
            for text in top_texts:
                has_entity.append(any(entity in text for entity in entities))
            ranks_by_query[query_id]["entity"] = first_rank(has_entity)
    return ranks_by_query


def first_rank(flags: list[bool]) -> int | None:
    """Return the rank of the first passage with a flag."""
    return flags.index(True) + 1 if True in flags else None


def check_recall(figures: dict[str, Any], kind_of_answer: str, ranks: list[int | None]) -> None:
    """Check the figures of ``answer`` or ``entity`` against the ranks of the first passages with an answer."""
    assert ranks and figures[f"{kind_of_answer} queries"] == len(ranks)
    reached_ranks = [rank for rank in ranks if rank is not None]
    for cutoff in (1, 5, 10, 50):
        share = len([rank for rank in reached_ranks if rank <= cutoff]) / len(ranks)
        assert figures[f"{kind_of_answer}@{cutoff}"] == pytest.approx(share)
    reciprocal_rank = sum(1 / rank for rank in reached_ranks if rank <= 10) / len(ranks)
    assert figures[f"{kind_of_answer} MRR@10"] == pytest.approx(reciprocal_rank)


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
    without_qrels = evaluated(unlabelled, runs, "--answers")
    for path, result, unlabelled_result in zip(runs, with_qrels, without_qrels, strict=True):
        ranks_by_query = recalled(sample_release, path).values()
        for kind_of_answer in ("answer", "entity"):
            ranks = [query_ranks[kind_of_answer] for query_ranks in ranks_by_query if kind_of_answer in query_ranks]
            check_recall(result["answers"], kind_of_answer, ranks)
        agreement = result["answers"].pop("agreement")
        assert unlabelled_result == {"run": str(path), "answers": result["answers"]}
    judged_means = [result["official"]["MRR@10"] for result in with_qrels]
    answer_means = [result["answers"]["answer MRR@10"] for result in with_qrels]
    assert agreement["tau"] == pytest.approx(kendalltau(judged_means, answer_means).statistic)
    assert agreement["systems"] == 3
    first_run_ranks = recalled(sample_release, runs[0])
    # The table has the rows of the first run first.
    for row in pq.read_table(table).to_pylist()[:16]:
        assert row["first_answer_rank"] == first_run_ranks[row["query_id"]]["answer"]
    assert "Kendall's tau" in run("baselines", "evaluate", "--release", sample_release, "--answers", runs).stdout


def test_equal_runs_have_no_agreement_of_qrels_and_answers(
    sample_release: Path, runs: list[Path], tmp_path: Path
) -> None:
    equal_runs = [runs[0], Path(shutil.copy(runs[0], tmp_path / "copy.run"))]
    for result in evaluated(sample_release, equal_runs, "--answers"):
        agreement = result["answers"]["agreement"]
        assert (agreement["tau"], agreement["interval"]) == (None, None)
    done = run("baselines", "evaluate", "--release", sample_release, "--answers", equal_runs)
    assert "queries: Kendall's tau -\n" in done.stdout
    assert "Warning" not in done.stderr


def test_english_queries_have_the_answers_of_the_chinese_ones(sample_release: Path, tmp_path: Path) -> None:
    queries = open_release(sample_release).texts("queries", "dev")
    english = {query_id: f"question {number}" for number, query_id in enumerate(queries)}
    source = tmp_path / "english.tsv"
    source.write_text("".join(f"{query_id}\t{text}\n" for query_id, text in english.items()))
    out = tmp_path / "out"
    run("builders", "add", "crosslingual", "--source", source, "--release", sample_release, "--out", out)
    # A perfect run has a positive passage of each question.
    judgments = open_release(out).table("qrels", "dev").to_pylist()
    positive_ids = {judgment["query-id"]: judgment["corpus-id"] for judgment in judgments}
    perfect_run = tmp_path / "perfect.run"
    write_run(perfect_run, [(md5(english[query_id]), [(docid, 1.0)]) for query_id, docid in positive_ids.items()])
    (result,) = evaluated(out, [perfect_run], "--set", "crosslingual", "--by", "question_type", "--answers")
    assert result["official"]["recall@1"] == 1
    assert result["answers"]["answer queries"] == 16
    question_types = {row["question_type"] for row in answers(out).values()}
    assert {group["group"] for group in result["by"]} == question_types


def test_a_release_without_answers_says_how_to_add_them(small: Path, tmp_path: Path) -> None:
    with draft_release(tmp_path / "without", BUILD, open_release(small)) as draft:
        draft.drop("answers")
    run_path = tmp_path / "a.run"
    write_run(run_path, [(md5("杏花香吗"), [(md5("杏花有淡淡的香味。"), 1.0)])])
    release = tmp_path / "without"
    error_line = f"error: {release}: has no answers/dev; `python -m builders add answers` adds the config"
    for options in (["--answers"], ["--by", "source"]):
        done = run("baselines", "evaluate", "--release", release, options, run_path, code=1)
        assert error_of(done) == error_line
    options = ["--format", "rag", "--run", run_path, "--out", tmp_path / "rag"]
    assert error_of(run("builders", "export", "--release", release, options, code=1)) == error_line
    done = run("baselines", "evaluate", "--release", small, "--split", "test", "--answers", run_path, code=1)
    assert "no query of the split has an answer" in error_of(done)


def test_the_export_for_generation_has_question_answers_and_texts(
    sample_release: Path, runs: list[Path], tmp_path: Path
) -> None:
    options = ["--release", sample_release, "--format", "rag", "--top-k", 3, "--run", runs[0]]
    run("builders", "export", options, "--out", tmp_path / "rag")
    release = open_release(sample_release)
    queries = release.texts("queries", "dev")
    texts = release.texts("corpus", "corpus")
    answer_rows = answers(sample_release)
    rankings = read_run(runs[0]).rankings
    rows = json_lines(tmp_path / "rag" / "rag" / "words.jsonl")
    assert [row["query_id"] for row in rows] == [query_id for query_id in queries if rankings.get(query_id)]
    for row in rows:
        answer_row = answer_rows[row["query_id"]]
        assert row["question"] == queries[row["query_id"]]
        assert row["answers"] == answer_row["answers"]
        assert row["question_type"] == answer_row["question_type"]
        passages = [(passage["docid"], passage["rank"], passage["text"]) for passage in row["passages"]]
        top_ids = rankings[row["query_id"]][:3]
        assert passages == [(docid, rank, texts[docid]) for rank, docid in enumerate(top_ids, 1)]


# The published rows


@pytest.mark.parametrize(
    ("split", "expected_counts"),
    [("train", (89, 0, 163, 148)), ("dev", (89, 0, 189, 167)), ("test", (0, 0, 0, 0))],
)
def test_answers_of_the_demo_rows_are_those_of_the_raw_file(
    split: str, expected_counts: tuple[int, int, int, int], demo_release: Path, shared_data: Path
) -> None:
    raw_path = shared_data / "dureader-2.0-demo" / f"search.{split}.json.gz"
    with gzip.open(raw_path, "rt", "utf-8", newline="\n") as file:
        raw_rows = {md5(row["question"]): row for row in map(json.loads, file)}
    for query_id, row in answers(demo_release, split).items():
        raw = raw_rows[query_id]
        assert row["answers"] == raw.get("answers", [])
        assert row["yesno_answers"] == raw.get("yesno_answers", [])
        entities = raw.get("entity_answers", [])
        assert row["entity_answers"] == (entities if any(entities) else [])
        assert (row["question_type"], row["source"]) == (raw["question_type"], "search")
        assert row["fact_or_opinion"] == raw["fact_or_opinion"]
    stats = json.loads((demo_release / "stats.json").read_text())["answers"][split]
    counts = (stats["answered"], stats["unanswered"], stats["answers"], stats["in_passages"])
    assert counts == expected_counts
