"""Test the perturbed questions: the rules, the sets of `add stress`, and `compare --stress`."""

import json
import os
import re
import sys
import unicodedata
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, output, run
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, make_release, md5, passage, tables
from scipy import stats

from baselines.measure.compare import compare_runs
from builders.add.add_stress import add_stress
from builders.add.homophones import TABLE_PATH, make_table, read_homophones
from builders.add.stress import perturb_queries
from builders.add.stress_rules import perturb, split_question
from builders.check.check_release import check_release
from builders.core.errors import InputError
from builders.store.names import STRESS_KINDS
from builders.store.reader import open_release
from builders.store.runs import write_run

pytest.importorskip("opencc")
pytest.importorskip("pypinyin")

WORD_KINDS = [kind for kind in STRESS_KINDS if kind not in ("traditional", "full-width")]
# Questions with names (李小龙, 上海), numbers, negations, Latin letters, a title and other scripts.
PIECES = [
    "身份证",
    "怎么办",
    "李小龙",
    "上海",
    "2018年",
    "第一次",
    "不能",
    "win10",
    "《战狼2》",
    " ",
    "?",
    "系统",
    "ひと",
    "𠀀",
]
ANY_QUESTION = st.one_of(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text(max_size=30))
ANY_KIND = st.sampled_from(STRESS_KINDS)


# The rules.


@given(question=ANY_QUESTION, kind=ANY_KIND, seed=st.integers(0, 3))
def test_a_rule_changes_a_question_always_in_the_same_way(question: str, kind: str, seed: int) -> None:
    forms = perturb(question, kind, seed)
    assert forms == perturb(question, kind, seed)
    assert question not in forms
    assert len(set(forms)) == len(forms)
    assert all(form.strip() for form in forms if question.strip())


@given(question=ANY_QUESTION, kind=st.sampled_from(WORD_KINDS))
def test_names_numbers_and_negations_stay(question: str, kind: str) -> None:
    words = split_question(question)
    assert "".join(word.text for word in words) == question
    kept_words = [word.text for word in words if word.stays]
    for form in perturb(question, kind, 0):
        # The kept words are in the form, in their order.
        pattern = ".*".join(map(re.escape, kept_words))
        assert re.fullmatch(f".*{pattern}.*", form, re.DOTALL)
        assert re.findall(r"\d+", form) == re.findall(r"\d+", question)


@pytest.mark.parametrize(
    "name", ["李小龙", "上海", "2018", "第一次", "不能", "《战狼2》", "win10", "范冰冰", "三百", "花呗"]
)
def test_a_question_of_a_name_or_a_number_alone_does_not_change(name: str) -> None:
    for kind in WORD_KINDS:
        assert perturb(name, kind, 0) == []


def edits(kind: str, question: str) -> set[str]:
    """Return the forms of a question with every seed."""
    return set(perturb(question, kind, 0))


def test_every_rule_on_one_question() -> None:
    assert edits("traditional", "头发以后里程") == {"頭髮以後里程"}
    assert edits("full-width", "win 7?") == {"ｗｉｎ　７？"}
    assert edits("swap", "身份证") == {"份身证", "身证份"}
    assert edits("repeat", "身份证") == {"身身份证", "身份份证", "身份证证"}
    assert edits("pinyin-word", "女朋友怎么办") == {"nvpengyou怎么办", "女朋友zenmeban"}
    # 身份 is a word, so 证 is not dropped.
    assert edits("drop", "身份证") == {"份证", "身证"}
    # A word of two characters would lose its meaning, unless it is 怎么 and the like.
    assert edits("drop", "冬天") == set()
    assert edits("drop", "怎么") == {"怎", "么"}


def test_a_homophone_has_the_same_pronunciation_in_the_word_and_makes_no_word() -> None:
    # 行 in 银行卡... is hang2; the table has the frequent characters of each pronunciation.
    assert "在" in read_homophones()["zai4"]
    for form in edits("homophone", "旅行"):  # 行 is xing2 here
        changed = [(old, new) for old, new in zip("旅行", form, strict=True) if old != new]
        assert len(changed) == 1
        old, new = changed[0]
        assert any(old in characters and new in characters for characters in read_homophones().values())
    assert "公事" not in edits("homophone", "公式")  # a word of jieba's dictionary


@given(question=ANY_QUESTION)
def test_full_width_is_undone_by_nfkc(question: str) -> None:
    for form in perturb(question, "full-width", 0):
        assert unicodedata.normalize("NFKC", form) == unicodedata.normalize("NFKC", question)


def test_pinyin_does_not_touch_letters_or_digits() -> None:
    assert edits("pinyin-word", "win10系统") == set()
    assert edits("pinyin-word", "win10 系统") == {"win10 xitong"}


def test_the_seed_changes_the_place() -> None:
    question = "儿童口腔溃疡的治疗方法"
    assert len({perturb(question, "swap", seed)[0] for seed in range(20)}) > 1
    assert {frozenset(perturb(question, "swap", seed)) for seed in range(20)} == {frozenset(edits("swap", question))}


def test_the_table_of_homophones_is_current() -> None:
    versions = f"jieba {version('jieba')}, pypinyin {version('pypinyin')}"
    table = TABLE_PATH.read_text("utf-8")
    if versions not in table:
        pytest.skip(f"the table was not made by {versions}")
    assert make_table() == table


def test_no_question_becomes_another_question() -> None:
    texts = {"1": "身份证", "2": "身份证明"}
    # 份身证 and 身证份 are taken, so nothing is left for the first question.
    rows, counts = perturb_queries(texts, "swap", 0, taken_texts={"份身证", "身证份"})
    assert [original_id for _, _, original_id in rows] == ["2"]
    assert counts == {"queries": 1, "unchanged": 0, "taken": 1}
    # Two equal texts get different forms.
    rows, counts = perturb_queries({"1": "身份证", "2": "身份证", "3": "身份证"}, "swap", 0, taken_texts=set())
    assert {text for _, text, _ in rows} == {"份身证", "身证份"}
    assert counts == {"queries": 2, "unchanged": 0, "taken": 1}


# The sets.


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with all kinds. Do not change it."""
    folder = tmp_path_factory.mktemp("stress")
    base = make_release(folder / "base")
    add_stress(base, out=folder / "out")
    return folder / "out"


def test_a_set_has_new_ids_and_the_judgments_of_the_originals(stressed: Path) -> None:
    release = open_release(stressed)
    texts = release.texts("queries", "dev")
    rows = release.table("stress-swap-queries", "dev").to_pylist()
    assert [row["original_id"] for row in rows] == [md5(question) for question in QUESTIONS["dev"]]
    for row in rows:
        assert row["_id"] == md5(row["text"])
        assert sorted(row["text"]) == sorted(texts[row["original_id"]])
    # Text n of the fixture answers question n; train has the first four texts.
    found = run("baselines", "evaluate", "--release", stressed, "--set", "stress-swap", perfect_run(stressed, "swap"))
    assert "stress-swap, 2 queries with 2 positive passages" in found.stdout
    assert {row["text"] for row in rows}.isdisjoint(texts.values())
    assert not (release.texts("stress-drop-queries", "test").keys() & release.texts("queries", "test").keys())


def perfect_run(release_path: Path, kind: str) -> Path:
    """Write a run with the positive passage of each dev query of a kind at rank 1."""
    answers = dict(zip(map(md5, QUESTIONS["dev"]), map(md5, TEXTS[4:]), strict=True))
    queries = open_release(release_path).table(f"stress-{kind}-queries", "dev").to_pylist()
    run_path = release_path.parent / f"{kind}.run"
    write_run(run_path, [(row["_id"], [(answers[row["original_id"]], 1.0)]) for row in queries])
    return run_path


def test_the_release_passes_check_and_the_card_has_the_counts(stressed: Path) -> None:
    assert not check_release(stressed).failed
    counts = json.loads((stressed / "stats.json").read_text("utf-8"))["stress"]
    assert counts["stress-swap_dev"] == {"queries": 2, "unchanged": 0, "taken": 0}
    assert counts["stress-full-width_dev"] == {"queries": 0, "unchanged": 2, "taken": 0}  # no letters, no digits
    assert "| `stress-swap_dev` | 2 | 0 | 0 |" in (stressed / "README.md").read_text("utf-8")
    build = json.loads((stressed / "manifest.json").read_text("utf-8"))["builds"][-1]
    assert build["verb"] == "stress"
    assert build["options"]["seed"] == 0


@pytest.mark.parametrize("export_format", ["beir", "trec", "tevatron"])
def test_an_export_has_the_judgments_with_the_new_ids(stressed: Path, tmp_path: Path, export_format: str) -> None:
    run(
        "builders",
        "export",
        "--release",
        stressed,
        "--set",
        "stress-swap",
        "--format",
        export_format,
        "--out",
        tmp_path,
    )
    exported = "\n".join(path.read_text("utf-8") for path in sorted(tmp_path.rglob("*")) if path.is_file())
    for row in open_release(stressed).table("stress-swap-queries", "dev").to_pylist():
        assert row["_id"] in exported
        assert row["text"] in exported
    if export_format == "trec":
        (qrels,) = tmp_path.rglob("*qrels*dev*")
        assert [line.split()[2] for line in qrels.read_text().splitlines()] == [md5(text) for text in TEXTS[4:]]
    if export_format == "tevatron":
        (dev_file,) = tmp_path.rglob("*dev*")
        rows = [json.loads(line) for line in dev_file.read_text("utf-8").splitlines()]
        assert [row["positive_passages"] for row in rows] == [[passage(text)] for text in TEXTS[4:]]


def test_the_same_call_gives_the_same_bytes_and_replaces_the_sets(stressed: Path, tmp_path: Path) -> None:
    add_stress(stressed, out=tmp_path / "again")
    assert (tmp_path / "again/manifest.json").read_bytes() == (stressed / "manifest.json").read_bytes()
    add_stress(stressed, kind=["swap"], seed=7, out=tmp_path / "other")
    splits = open_release(tmp_path / "other").splits()
    assert {config for config, _ in splits if config.startswith("stress-")} == {"stress-swap-queries"}


def test_a_part_of_a_release_keeps_the_perturbed_questions(stressed: Path, tmp_path: Path) -> None:
    hard_run = tmp_path / "hard.run"
    write_run(hard_run, [(md5(question), [(md5(TEXTS[0]), 1.0)]) for question in QUESTIONS["dev"]])
    run(
        *("builders", "add", "samples", "--release", stressed, "--nano", "--hard", hard_run, "--split", "dev"),
        *("--extract", "--out", tmp_path / "part"),
    )
    rows = open_release(tmp_path / "part").table("stress-swap-queries", "dev")
    assert rows.equals(open_release(stressed).table("stress-swap-queries", "dev"))


# Refused inputs: one line.


def refused(*words: object, code: int = 1) -> str:
    """Return the error line of `add stress`."""
    done: Done = run("builders", "add", "stress", *words, code=code)
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_refused_calls(tmp_path: Path) -> None:
    rows = {key: content for key, content in tables().items() if key[1] in ("train", "corpus")}
    train_only = make_release(tmp_path / "train", rows)
    out = tmp_path / "out"
    assert "has no dev or test queries to perturb" in refused("--release", train_only, "--out", out)
    base = make_release(tmp_path / "base")
    assert "--kind" in refused("--release", base, "--kind", "typo", "--out", out, code=2)
    assert "no rule can change a query" in refused("--release", base, "--kind", "full-width", "--out", out)
    assert "not a release directory" in refused("--release", tmp_path / "nowhere", "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(("library", "kind"), [("opencc", "traditional"), ("pypinyin", "homophone")])
def test_a_missing_library_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    base = make_release(tmp_path / "base")
    with pytest.raises(InputError, match=rf"add stress needs {library}: pip install .*\[stress\]"):
        add_stress(base, kind=[kind], out=tmp_path / "out")
    add_stress(base, kind=["swap"], out=tmp_path / "out")  # needs neither


# Comparisons.


def ranked_run(path: Path, ranks: dict[str, int], positives: dict[str, str]) -> Path:
    """Write a run whose positive passage is at the given rank of each query."""
    hits_by_query = []
    for query_id, positive_rank in ranks.items():
        passage_ids = [f"other{number}" for number in range(1, 13)]
        passage_ids[positive_rank - 1] = positives[query_id]
        hits_by_query.append((query_id, [(passage_id, -float(at)) for at, passage_id in enumerate(passage_ids)]))
    write_run(path, hits_by_query)
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], dict[str, list[float]]]:
    """A release, the runs as asked and of two kinds, and the reciprocal ranks of each run. Do not change them."""
    folder = tmp_path_factory.mktemp("compared")
    questions = [f"{word}怎么办" for word in ("身份证", "手机", "冬天", "天气", "电脑")]
    rows = tables()
    rows["queries", "dev"] = [{"_id": md5(question), "text": question} for question in questions]
    del rows["dev", "dev"]
    positives = {md5(question): md5(TEXTS[number]) for number, question in enumerate(questions)}
    rows["qrels", "dev"] = [
        {"query-id": query_id, "corpus-id": passage_id, "score": 1} for query_id, passage_id in positives.items()
    ]
    release = folder / "release"
    add_stress(make_release(folder / "base", rows), split=["dev"], kind=["swap", "repeat"], out=release)
    ranks = {"main": [1, 1, 2, 1, 4], "swap": [3, 2, 2, 5, 4], "repeat": [1, 1, 1, 1, 4]}
    runs = []
    values = {}
    for kind, kind_ranks in ranks.items():
        ids = list(positives)
        answers = dict(positives)
        if kind != "main":
            queries = open_release(release).table(f"stress-{kind}-queries", "dev").to_pylist()
            ids = [row["_id"] for row in queries]
            answers = {row["_id"]: positives[row["original_id"]] for row in queries}
        runs.append(ranked_run(folder / f"{kind}.run", dict(zip(ids, kind_ranks, strict=True)), answers))
        values[kind] = [1 / rank for rank in kind_ranks]
    return release, runs, values


def drops_of(release: Path, runs: list[Path], **options: Any) -> dict[str, Any]:
    """Return the result of `compare --stress`."""
    value: dict[str, Any] = compare_runs(runs, release=release, stress=True, resamples=999, **options).value
    return value


def test_drops_are_paired_with_the_originals(compared: tuple[Path, list[Path], dict[str, list[float]]]) -> None:
    release, runs, values = compared
    # The order of the runs does not matter: the ids say which queries a run has.
    result = drops_of(release, runs[::-1], measure=["MRR@10"])
    rows = {row["kind"]: row for row in result["measures"]["MRR@10"]}
    assert list(rows) == ["swap", "repeat"]
    p_values = []
    for kind, row in rows.items():
        expected = stats.ttest_rel(values[kind], values["main"])
        p_values.append(expected.pvalue)
        assert row["t"]["p"] == pytest.approx(expected.pvalue)
        assert row["interval"] == pytest.approx(list(expected.confidence_interval(0.95)))
        assert row["asked"] == pytest.approx(sum(values["main"]) / 5)
        assert row["perturbed"] == pytest.approx(sum(values[kind]) / 5)
        assert row["difference"] == pytest.approx(row["perturbed"] - row["asked"])
    assert (rows["swap"]["losses"], rows["swap"]["ties"], rows["swap"]["wins"]) == (3, 2, 0)
    # Holm's correction over the two kinds.
    smaller, larger = sorted(p_values)
    corrected = sorted(row["t"]["corrected"] for row in rows.values())
    assert corrected == pytest.approx([2 * smaller, max(2 * smaller, larger)])


def test_the_questions_that_fell_deepest(compared: tuple[Path, list[Path], dict[str, list[float]]]) -> None:
    release, runs, _ = compared
    swap, repeat = drops_of(release, runs, measure=["MRR@10"], changed=2)["fallen"]
    assert [query["original_text"] for query in swap["queries"]] == ["天气怎么办", "身份证怎么办"]
    assert [(query["original_rank"], query["rank"]) for query in swap["queries"]] == [(1, 5), (1, 3)]
    assert [query["query_id"] for query in swap["queries"]] == [md5(query["text"]) for query in swap["queries"]]
    assert repeat["queries"] == []
    report = compare_runs(runs, release=release, stress=True, changed=1)
    assert "天气怎么办 → " in str(report)
    assert "swap" in report.to_markdown()
    assert len(report.to_pandas()) == 6  # two kinds, three measures


def test_refused_comparisons(
    compared: tuple[Path, list[Path], dict[str, list[float]]], stressed: Path, tmp_path: Path
) -> None:
    release, (asked, swap, repeat), _ = compared
    for runs, problem in (
        ([swap, repeat], "no run has the dev queries as asked"),
        ([asked, swap, swap], "is a second run of stress-swap"),
        ([asked, asked], "is a second run of main"),
    ):
        with pytest.raises(InputError, match=problem):
            drops_of(release, runs)
    foreign = ranked_run(tmp_path / "foreign.run", {"q": 1}, {"q": "p"})
    with pytest.raises(InputError, match=r"foreign.run: shares no query with the dev queries"):
        drops_of(release, [asked, foreign])
    with pytest.raises(InputError, match="has no perturbed dev queries; run `python -m builders add stress"):
        drops_of(make_release(tmp_path / "plain"), [asked, swap])
    with pytest.raises(InputError, match="remove --set stress-swap"):
        drops_of(release, [asked, swap], set="stress-swap")
    words = ("baselines", "compare", "--stress", asked, swap)
    assert "--release" in run(*words, "--qrels", asked, code=2).stderr
    assert "--by" in run(*words, "--release", release, "--by", "query_length", code=2).stderr


# Damaged sets, in a release whose manifest describes them.


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"original_id": "nowhere"}, "original_id 'nowhere' of .* is no dev query"),
        ({"_id": md5("手机怎么办办")}, "the id .* is repeated"),
        ({"text": None}, "stress-repeat-queries"),
        ({"original_id": None}, "stress-repeat-queries"),
    ],
)
def test_a_damaged_set_is_one_line(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    rows = tables()
    originals = [row["_id"] for row in rows["queries", "dev"]]
    texts = ["手机怎么办办", "天气怎么样样"]
    perturbed = [
        {"_id": md5(text), "text": text, "original_id": original_id}
        for text, original_id in zip(texts, originals, strict=True)
    ]
    perturbed[1] |= changes
    rows["stress-repeat-queries", "dev"] = perturbed
    release = make_release(tmp_path / "release", rows)
    hits = [(md5(TEXTS[4]), 1.0)]
    write_run(tmp_path / "asked.run", [(original_id, hits) for original_id in originals])
    write_run(tmp_path / "repeat.run", [(row["_id"], hits) for row in perturbed])
    words = ("compare", "--release", release, "--stress", tmp_path / "asked.run", tmp_path / "repeat.run")
    done = run("baselines", words, "--quiet", code=1)
    assert re.search(problem, done.error), done.stderr
    assert not done.stdout


# The benchmark of docs/stress.md.


@pytest.mark.slow
def test_one_command_makes_the_tables_and_the_picture_and_resumes(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "benchmarks/stress.py", "--small", "--work", tmp_path / "work"]
    words += ["--out", tmp_path / "figures"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first_page = output(words, tmp_path, environment)
    runs = sorted((tmp_path / "work").rglob("*.run.gz"))
    assert len(runs) == 8
    # `fuse` takes a moment and is repeated.
    searches = [path for path in runs if path.name != "fusion.run.gz"]
    times = [path.stat().st_mtime_ns for path in searches]
    assert (tmp_path / "figures.md").read_text("utf-8") == first_page
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
    (collection,) = json.loads((tmp_path / "figures.json").read_text("utf-8"))["collections"]
    # The figures of a system are those of `compare --stress` with its runs.
    parts = sorted((tmp_path / "work/runs-0").glob("bm25.*.run"))
    report = compare_runs(parts, release=tmp_path / "work/stressed", stress=True, measure=["MRR@10"])
    rows = report.value["measures"]["MRR@10"]
    assert collection["systems"]["BM25"]["measures"]["MRR@10"][0]["difference"] == rows[0]["difference"]
    assert f"| BM25 | {100 * report.value['means']['MRR@10']:.2f} |" in first_page
    # A second call searches no more.
    assert output(words, tmp_path, environment) == first_page
    assert [path.stat().st_mtime_ns for path in searches] == times


# Real questions.


def test_real_questions_change_once_and_stay_apart(shared_data: Path, tmp_path: Path) -> None:
    run("builders", "release", "--raw", shared_data / "dureader-2.0-demo", "--out", tmp_path / "demo")
    add_stress(tmp_path / "demo", out=tmp_path / "stress")
    release = open_release(tmp_path / "stress")
    questions = set()
    for split in ("train", "dev", "test"):
        questions |= set(release.texts("queries", split).values())
    for kind in STRESS_KINDS:
        kind_texts: list[str] = []
        for split in ("dev", "test"):
            originals = release.texts("queries", split)
            for row in release.table(f"stress-{kind}-queries", split).to_pylist():
                original = originals[row["original_id"]]
                kind_texts.append(row["text"])
                # Digits stay as they are, and in full width they stay the same numbers.
                digits = re.findall(r"\d+", unicodedata.normalize("NFKC", row["text"]))
                assert digits == re.findall(r"\d+", original)
        assert len(set(kind_texts)) == len(kind_texts)
        assert questions.isdisjoint(kind_texts)
        assert all(text.strip() for text in kind_texts)
