"""`errors no-answer`: lists without their answering passages, AUROC, thresholds and nAUC."""

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from commands import Done, error_of, run
from hypothesis import assume, given
from hypothesis import strategies as st
from releases import BUILD, corpus_rows, judgment_row, md5
from sklearn.metrics import auc, roc_auc_score

from baselines import fuse_runs, report_no_answer
from baselines.measure.confidence import auroc, auroc_interval, choose_threshold, nauc, nauc_confidences, try_threshold
from builders.core.errors import InputError, UsageError
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.runs import Run, read_run, write_run

confidences = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=12)


@given(confidences, confidences)
def test_auroc_is_that_of_sklearn(answerable: list[float], unanswerable: list[float]) -> None:
    labels = [1] * len(answerable) + [0] * len(unanswerable)
    expected = roc_auc_score(labels, answerable + unanswerable)
    assert auroc(np.array(answerable), np.array(unanswerable)) == pytest.approx(expected, abs=1e-12)


@given(confidences, confidences)
def test_auroc_is_the_share_of_ordered_pairs(answerable: list[float], unanswerable: list[float]) -> None:
    wins = 0.0
    for high in answerable:
        for low in unanswerable:
            wins += 1.0 if high > low else 0.5 if high == low else 0.0
    expected = wins / (len(answerable) * len(unanswerable))
    assert auroc(np.array(answerable), np.array(unanswerable)) == pytest.approx(expected, abs=1e-12)


def test_the_interval_of_auroc_resamples_questions() -> None:
    random = np.random.default_rng(1)
    answerable = random.normal(1, 1, 60)
    unanswerable = answerable - random.exponential(0.5, 60)
    values = []
    for _ in range(500):
        rows = random.integers(60, size=60)
        pairs = answerable[rows][:, None] - unanswerable[rows][None, :]
        values.append((pairs > 0).mean())
    expected = np.quantile(values, [0.025, 0.975])
    assert auroc_interval(answerable, unanswerable, seed=0) == pytest.approx(expected, abs=0.02)


@given(confidences, st.sampled_from([0.0, 0.1, 0.25, 0.29, 0.5, 0.7, 0.99]))
def test_the_threshold_is_the_lowest_with_the_wished_share(unanswerable: list[float], wished: float) -> None:
    def has_wished_share(threshold: float) -> bool:
        above = sum(confidence > threshold for confidence in unanswerable)
        return Fraction(above, len(unanswerable)) <= Fraction(str(wished))

    threshold = choose_threshold(np.array(unanswerable), wished)
    assert threshold == min(filter(has_wished_share, unanswerable))


def test_a_share_counts_as_it_is_written() -> None:
    # 0.29 * 100 is 28.999999999999996 in floats.
    assert choose_threshold(np.arange(100.0), 0.29) == 70


def test_the_threshold_is_chosen_on_one_half_and_counted_on_the_other() -> None:
    random = np.random.default_rng(0)
    answerable = random.normal(1, 1, 101)
    unanswerable = random.normal(0, 1, 101)
    trial = try_threshold(answerable, unanswerable, 0.1, seed=3)
    assert (trial.chosen_on, trial.questions) == (50, 51)
    # Of all questions, the first half has at most 5 false answers, and the counts of the other half are the rest.
    all_false = int((unanswerable > trial.threshold).sum())
    assert 0 <= all_false - trial.false_answers <= 5
    assert try_threshold(answerable, unanswerable, 0.1, seed=3) == trial
    assert try_threshold(answerable, unanswerable, 0.1, seed=4) != trial


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=30), st.integers(0, 5))
def test_the_trial_of_a_threshold_equals_a_brute_force(rows: list[tuple[int, int]], seed: int) -> None:
    answerable, unanswerable = (np.array(column, float) for column in zip(*rows, strict=True))
    trial = try_threshold(answerable, unanswerable, 0.2, seed)
    shuffled_rows = [rows[row] for row in np.random.default_rng(seed).permutation(len(rows))]
    chosen_on, other_half = shuffled_rows[: len(rows) // 2], shuffled_rows[len(rows) // 2 :]
    # Of all thresholds, the lowest with at most a fifth of false answers on the first half.
    allowed = []
    for _, threshold in chosen_on:
        false_answers = [without for _, without in chosen_on if without > threshold]
        if 5 * len(false_answers) <= len(chosen_on):
            allowed.append(threshold)
    assert (trial.threshold, trial.chosen_on, trial.questions) == (min(allowed), len(chosen_on), len(other_half))
    assert trial.false_answers == len([without for _, without in other_half if without > trial.threshold])
    assert trial.answered == len([score for score, _ in other_half if score > trial.threshold])


def nauc_by_its_definition(confidences: Sequence[float], values: Sequence[float]) -> float:
    """Return nAUC, where a question's value is the mean of the questions with its confidence."""

    def area(keys: Sequence[float]) -> float:
        pairs = []
        for key in keys:
            tied = [value for tied_key, value in zip(keys, values, strict=True) if tied_key == key]
            pairs.append((key, sum(tied) / len(tied)))
        rising = [value for _, value in sorted(pairs)]
        means = []
        for tenth in range(10):
            # mteb's shares are products: 3 * 0.1 is above 0.3, so 4.5 of 15 questions are rounded up.
            declined = min(round(tenth * 0.1 * len(rising)), len(rising) - 1)
            means.append(math.fsum(rising[declined:]) / (len(rising) - declined))
        return auc(np.arange(10) / 10, means)

    flat = 0.9 * sum(values) / len(values)
    return (area(confidences) - flat) / (area(values) - flat)


question_rows = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0.1, 0.25, 0.5, 1])), min_size=2, max_size=40)


@given(question_rows)
def test_nauc_is_that_of_its_definition(rows: list[tuple[int, float]]) -> None:
    keys = [float(confidence) for confidence, _ in rows]
    values = [float(value) for _, value in rows]
    assume(len(set(values)) > 1)
    assert nauc(np.array(keys), np.array(values)) == pytest.approx(nauc_by_its_definition(keys, values), abs=1e-9)


def test_nauc_equals_figures_of_mteb() -> None:
    # mteb 2.26.24: nauc(np.array(...), np.array(...)) of mteb/_evaluators/retrieval_metrics.py.
    keys = np.array([0.3, 0.9, 0.3, 0.5, 0.1, 0.8, 0.7])
    values = np.array([0.5, 1.0, 0.0, 0.25, 0.1, 1.0, 0.0])
    assert nauc(keys, values) == pytest.approx(0.8072161157193641, abs=1e-12)
    assert nauc(keys, np.ones(7)) is None
    assert nauc_confidences(np.array([5.0, 3.0, 1.0])) == (5.0, pytest.approx(math.sqrt(8 / 3)), 2.0)
    assert nauc_confidences(np.array([5.0])) == (5.0, 0.0, 0.0)
    assert nauc_confidences(np.array([])) == (0.0, 0.0, 0.0)


# Question "dry" has a positive, a near-duplicate of it, an answer in other words, a judged negative and two others.
DRY = "手机进水以后先关机，再放进干燥的大米里放两天，最后送去维修。"
COPY = "手机进水以后先关机，再放进干燥的大米里放两天，最后送去维修！"
ANSWER = "网友说：关机，放进大米。"
NEGATIVE = "有人说关机，放进大米没有用，这是谣言。"
WET = "苹果手机的价格是五千元。"
FAR = "北京的冬天很冷。"
COLD = "哈尔滨的冬天零下三十度。"
LISTS = {
    "dry": [(DRY, 9.0), (NEGATIVE, 8.5), (COPY, 8.0), (ANSWER, 7.0), (WET, 5.0), (FAR, 1.0)],
    "cold": [(COLD, 6.0), (FAR, 4.0), (WET, 2.0)],
    "far": [(COLD, 3.0), (FAR, 2.5), (DRY, 2.0), (WET, 1.0)],
}


@pytest.fixture(autouse=True)
def _few_resamples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "small" in request.fixturenames:
        monkeypatch.setattr("baselines.measure.confidence.RESAMPLES", 20)


Rows = dict[tuple[str, str], list[dict[str, Any]]]


def small_rows() -> Rows:
    """Return the rows of a release of the texts above. Only the question "dry" has an answer."""
    answer_row = dict.fromkeys(schema_of("answers").names, "")
    answer_row |= {"query_id": "dry", "answers": ["关机，放进大米"]}
    answer_row |= {"yesno_answers": [], "entity_answers": [[]], "answer_passages": [[]]}
    return {
        ("corpus", "corpus"): corpus_rows([DRY, COPY, ANSWER, NEGATIVE, WET, FAR, COLD]),
        ("queries", "dev"): [{"_id": query_id, "text": query_id} for query_id in LISTS],
        ("qrels", "dev"): [
            judgment_row("dry", md5(DRY)),
            judgment_row("dry", md5(NEGATIVE), 0),
            judgment_row("cold", md5(COLD)),
            judgment_row("far", md5(FAR)),
        ],
        ("answers", "dev"): [answer_row],
    }


def stress_row(text: str, original_id: str) -> dict[str, str]:
    """Return a row of ``stress-swap-queries``."""
    return {"_id": md5(text), "text": text, "original_id": original_id}


def write_release(path: Path, rows: Rows) -> Path:
    """Write a release with these rows."""
    with draft_release(path, BUILD) as draft:
        for (config, split), table_rows in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(table_rows, schema_of(config))])
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A release of the texts above with answers, and the run ``run`` beside it."""
    write_lists(tmp_path / "run", LISTS)
    return write_release(tmp_path / "small", small_rows())


def no_answer(release: Path, *words: object, code: int = 0) -> Done:
    """Run the step on a release."""
    return run("baselines", "errors", "no-answer", "--release", release, *words, code=code)


def write_lists(path: Path, lists: dict[str, list[tuple[str, float]]]) -> Path:
    """Write (text, score) pairs as a run."""
    hits = {}
    for query_id, scored_texts in lists.items():
        hits[query_id] = [(md5(text), score) for text, score in scored_texts]
    write_run(path, hits.items())
    return path


def test_positives_copies_and_answers_are_removed(small: Path, tmp_path: Path) -> None:
    report = report_no_answer([tmp_path / "run"], release=small, list=tmp_path / "list", seed=1)
    lines = [json.loads(line) for line in (tmp_path / "list").read_text().splitlines()]
    assert lines[0] == {
        "run": str(tmp_path / "run"),
        "query_id": "dry",
        "best": 9.0,
        "gap": 0.5,
        # The passage that people judged negative stays, although it contains the answer's words.
        "best_without": 8.5,
        "gap_without": 3.5,
        "removed": {md5(DRY): "positive", md5(COPY): "near-duplicate", md5(ANSWER): "answer"},
    }
    assert [(line["best_without"], line["gap_without"]) for line in lines[1:]] == [(4.0, 2.0), (3.0, 1.0)]
    (value,) = report.value
    assert value["removed"] == {"positive": 3, "near-duplicate": 1, "answer": 1}
    labels = [1, 1, 1, 0, 0, 0]
    assert value["best"]["auroc"] == pytest.approx(roc_auc_score(labels, [9, 6, 3, 8.5, 4, 3]))
    assert value["gap"]["auroc"] == pytest.approx(roc_auc_score(labels, [0.5, 2, 0.5, 3.5, 2, 1]))
    printed = no_answer(small, "--seed", 1, tmp_path / "run").stdout
    assert printed.rstrip("\n") == str(report)
    assert "near-duplicates and passages with an answer are removed" in printed


def test_a_perturbed_question_has_the_answers_of_its_original(tmp_path: Path) -> None:
    perturbed = "yrd"
    rows = small_rows() | {("stress-swap-queries", "dev"): [stress_row(perturbed, "dry"), stress_row("dloc", "cold")]}
    release = write_release(tmp_path / "stress", rows)
    lists = {md5(perturbed): LISTS["dry"], md5("dloc"): LISTS["cold"]}
    run_path = write_lists(tmp_path / "run", lists)
    report = report_no_answer([run_path], release=release, set="stress-swap", list=tmp_path / "list")
    first_line = json.loads((tmp_path / "list").read_text().splitlines()[0])
    assert first_line["removed"] == {md5(DRY): "positive", md5(COPY): "near-duplicate", md5(ANSWER): "answer"}
    assert "passages with an answer are removed" in str(report)


def test_a_release_without_answers_says_so(tmp_path: Path) -> None:
    rows = small_rows()
    del rows["answers", "dev"]
    release = write_release(tmp_path / "bare", rows)
    report = report_no_answer([write_lists(tmp_path / "run", LISTS)], release=release)
    assert report.value[0]["removed"] == {"positive": 3, "near-duplicate": 1, "answer": 0}
    assert "(the release has no answers to these questions)" in str(report)


def test_a_run_that_is_too_short_names_the_depth(small: Path, tmp_path: Path) -> None:
    short = {query_id: scored_texts[:3] for query_id, scored_texts in LISTS.items()}
    error = error_of(no_answer(small, write_lists(tmp_path / "short", short), code=1))
    # "dry" has a positive and a near-duplicate in the first three, so one passage remains.
    assert "is too short for 1 of 3 questions" in error and "search with --top-k 4 or more" in error
    # The fourth passage has an answer, too, so the depth is named again.
    short["dry"] = LISTS["dry"][:4]
    error = error_of(no_answer(small, write_lists(tmp_path / "short", short), code=1))
    assert "search with --top-k 5 or more" in error
    short["dry"] = LISTS["dry"][:5]
    no_answer(small, write_lists(tmp_path / "enough", short))


def test_a_list_that_the_engine_ended_is_skipped(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = LISTS | {"cold": LISTS["cold"][:2]}
    (value,) = report_no_answer([write_lists(tmp_path / "ended", ended)], release=small).value
    assert (value["questions"], value["skipped"]) == (2, 1)
    assert "1 of 3 questions are skipped, because the engine has fewer than two further passages" in caplog.text
    del ended["far"]
    with pytest.raises(InputError, match="has lists of two passages for 1 of 3 questions; expected two or more"):
        report_no_answer([write_lists(tmp_path / "few", ended)], release=small)


def test_a_file_of_ranks_is_refused(small: Path, tmp_path: Path) -> None:
    ranks = {query_id: [md5(text) for text, _ in scored_texts] for query_id, scored_texts in LISTS.items()}
    (tmp_path / "ranks.json").write_text(json.dumps(ranks))
    error = error_of(no_answer(small, tmp_path / "ranks.json", code=1))
    assert "has the best score 1 for every question; expected a run with a retriever's scores" in error


def test_a_fusion_is_compared_with_the_fusion_of_pruned_runs(small: Path, tmp_path: Path) -> None:
    reverse = {}
    for query_id, scored_texts in LISTS.items():
        reverse[query_id] = [(text, -score) for text, score in scored_texts]
    runs = [tmp_path / "run", write_lists(tmp_path / "reverse", reverse)]
    for path in runs:
        no_answer(small, "--write-pruned", f"{path}.pruned", path)
    removed_ids = {md5(DRY), md5(COPY), md5(ANSWER)}
    pruned = read_run(Path(f"{runs[0]}.pruned"))
    assert pruned.rankings["dry"] == [md5(text) for text, _ in LISTS["dry"] if md5(text) not in removed_ids]
    fused = fuse_runs(runs)
    fused_pruned = fuse_runs([Path(f"{path}.pruned") for path in runs])
    (value,) = report_no_answer([fused], release=small, pruned=fused_pruned).value
    assert value["questions"] == 3
    with pytest.raises(InputError, match=r"passage '\w+' for the question 'dry', which it answers \(positive\)"):
        report_no_answer([fused], release=small, pruned=fused)
    without_dry = {query_id: fused_pruned.hits[query_id] for query_id in ("cold", "far")}
    with pytest.raises(InputError, match=r"has 0 passages for the question 'dry', where 3 of .* remain"):
        report_no_answer([fused], release=small, pruned=Run.in_memory("lacking", without_dry))
    with pytest.raises(UsageError, match="pruned belongs to one run; expected one run, found 2"):
        report_no_answer(runs, release=small, pruned=fused_pruned)


def test_deep_lists_are_read_until_two_passages_remain(small: Path, tmp_path: Path) -> None:
    rows = corpus_rows([DRY + chr(ord("一") + number) for number in range(60)] + [WET, FAR])
    ids = [row["_id"] for row in rows]
    queries = {"a": ids, "b": list(reversed(ids))}
    with draft_release(tmp_path / "deep", BUILD) as draft:
        draft.write("corpus", "corpus", [pa.Table.from_pylist(rows, schema_of("corpus"))])
        query_rows = [{"_id": query_id, "text": query_id} for query_id in queries]
        draft.write("queries", "dev", [pa.Table.from_pylist(query_rows, schema_of("queries"))])
        judgments = [judgment_row(query_id, ids[0]) for query_id in queries]
        draft.write("qrels", "dev", [pa.Table.from_pylist(judgments, schema_of("qrels"))])
    hits = {}
    for query_id, passage_ids in queries.items():
        offset = 100.0 if query_id == "a" else 0.0
        hits[query_id] = [(passage_id, offset - rank) for rank, passage_id in enumerate(passage_ids)]
    report_no_answer([Run.in_memory("deep", hits)], release=tmp_path / "deep", list=tmp_path / "list")
    first_line, second_line = map(json.loads, (tmp_path / "list").read_text().splitlines())
    assert len(first_line["removed"]) == 60 and first_line["best_without"] == 40.0
    assert second_line["best_without"] == 0.0


@pytest.mark.parametrize("option", ["--list", "--write-pruned"])
def test_an_output_is_not_a_run_that_is_read(small: Path, tmp_path: Path, option: str) -> None:
    before = (tmp_path / "run").read_bytes()
    error = error_of(no_answer(small, option, tmp_path / "run", tmp_path / "run", code=1))
    assert f"is both a file to read and {option}" in error
    assert (tmp_path / "run").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--false-answers", "1"], "--false-answers"),
        (["--false-answers", "x"], "--false-answers"),
        (["--write-pruned", "out", "RUN"], "--write-pruned belongs to one run"),
    ],
)
def test_wrong_words_are_one_line(small: Path, tmp_path: Path, words: list[str], expected: str) -> None:
    paths = [tmp_path / "run" if word == "RUN" else word for word in words]
    stderr = no_answer(small, tmp_path / "run", *paths, code=2).stderr
    error_lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(error_lines) == 1 and expected in error_lines[0]
