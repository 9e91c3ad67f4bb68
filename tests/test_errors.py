"""The verb ``errors``: the drawn pairs, their round, and the tally next to Table 10."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, annotate, judge, judgments, read_table
from chat_server import Chat
from commands import Done, run
from releases import make_release, md5, tables

from builders.annotate.rounds import ERRORS
from builders.store.runs import write_run

CHOICES = ERRORS.choices
CITIES = ("成都", "长沙", "南京", "武汉", "广州", "杭州", "青岛", "昆明")
# Each question has one answer. The passages of other cities are about another place.
QUESTIONS = [f"{city}地铁几点停运" for city in CITIES]
ANSWERS = [f"{city}地铁末班车一般在晚上十一点左右，节假日延长一小时。" for city in CITIES]
COPY = f"答：{ANSWERS[0]}"  # unjudged


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tables([*ANSWERS, COPY])
    rows["queries", "dev"] = [{"_id": md5(question), "text": question} for question in QUESTIONS]
    pairs = zip(map(md5, QUESTIONS), map(md5, ANSWERS), strict=True)
    rows["qrels", "dev"] = [{"query-id": query, "corpus-id": answer, "score": 1} for query, answer in pairs]
    del rows["dev", "dev"]
    return make_release(tmp_path_factory.mktemp("errors") / "release", rows)


def write(path: Path, rank: int = 7, **others: list[str]) -> Path:
    """Write a run with the answers at ``rank`` behind other cities. ``others`` sets the whole ranking of a city."""
    rankings = []
    for city, question, answer in zip(CITIES, QUESTIONS, ANSWERS, strict=True):
        texts = others.get(city) or [each for each in ANSWERS if each != answer]
        if city not in others:
            texts.insert(rank - 1, answer)
        rankings.append((md5(question), [(md5(text), 1 / place) for place, text in enumerate(texts, 1)]))
    write_run(path, rankings)
    return path


def errors(release: Path, path: Path, *words: object, code: int | None = 0) -> Done:
    return run("baselines", "errors", "--quiet", "--release", release, "--split", "dev", *words, path, code=code)


def pairs(round_: Path) -> list[tuple[str, str]]:
    return [(row["query-id"], row["corpus-id"]) for row in read_table(round_ / "packages" / "dev-001.csv")]


@pytest.fixture
def round_(release: Path, tmp_path: Path) -> Path:
    errors(release, write(tmp_path / "a.run"), "--round", tmp_path / "round")
    return tmp_path / "round"


def test_only_queries_without_a_positive_in_their_top_are_analysed(release: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.run", rank=6, 成都=[*ANSWERS[3:7], ANSWERS[0], COPY])
    done = errors(release, path, "--round", tmp_path / "round")
    assert f"{path}: 7 of 8 queries have no positive in their top 5; drawn: 7 queries, 35 pairs" in done.stdout
    found = pairs(tmp_path / "round")
    assert len(found) == 35 and md5(QUESTIONS[0]) not in {query for query, _ in found}
    assert not {(md5(q), md5(a)) for q, a in zip(QUESTIONS, ANSWERS, strict=True)} & {*found}
    drawn = []
    for name, seed in (("one", 0), ("again", 0), ("other", 2)):  # the same seed draws the same queries
        errors(release, path, "--sample", 3, "--seed", seed, "--round", tmp_path / name)
        drawn.append(pairs(tmp_path / name))
    assert drawn[0] == drawn[1] != drawn[2] and len({query for query, _ in drawn[0]}) == 3


ROTATION = (1, 1, 2, 6, 8)


def by_place(round_: Path) -> Any:
    places = {pair: number % 5 for number, pair in enumerate(pairs(round_))}
    return lambda row: ROTATION[places[row["query-id"], row["corpus-id"]]]


def tally(round_: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("baselines", "errors", "--tally", round_, "--format", "json").stdout)
    return found


def test_answers_are_tallied_beside_table_10(round_: Path) -> None:
    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", by_place(round_))
    found = tally(round_)
    assert (found["pairs"], found["judged"], found["decided"], found["queries"]) == (40, 40, 40, 8)
    rows = found["categories"]
    assert {key: row["pairs"] for key, row in rows.items() if row["pairs"]} == {
        **{"entity_mismatch": 16, "numeral_mismatch": 8, "term_overlap": 8, "other": 8}
    }
    assert [row["paper"] for row in rows.values()] == [0.39, 0.05, 0.094, 0.01, 0.016, 0.21, 0.148, 0.082]
    entity = rows["entity_mismatch"]
    assert entity["share"] == 0.4
    assert entity["low"] == pytest.approx(0.4) and entity["high"] == pytest.approx(0.4)  # each query has two of five
    lines = run("baselines", "errors", "--tally", round_).stdout.splitlines()
    assert lines[0] == "40 of 40 pairs judged, 0 of them undecided; 0 of 1 packages accepted; percent"
    assert lines[3].split() == ["entity", "mismatch", "16", "40.00", "40.00", "to", "40.00", "39.00"]


def test_people_answer_with_a_category_and_an_adjudicator_decides(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    names = {1: "实体不符", 2: "numeral mismatch", 6: "Term_Overlap", 8: "其他"}
    with pytest.raises(AssertionError, match="label: expected 1 to 8, found '0'"):
        judge(round_, ANNA, sheet, lambda row: 0)
    judge(round_, ANNA, sheet, lambda row: names[by_place(round_)(row)])
    judge(round_, BEN, sheet, lambda row: 1 if by_place(round_)(row) == 2 else by_place(round_)(row))
    assert (tally(round_)["judged"], tally(round_)["decided"]) == (40, 32)
    assert annotate("adjudicate", round_).stdout.endswith("8 pairs to decide\n")
    judge(round_, "carl", round_ / "adjudication" / "dev-001.csv", lambda row: 7)
    assert tally(round_)["categories"]["false_negative"]["pairs"] == 8


def test_a_models_answers_are_tallied_where_asked_for(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with Chat(lambda prompt: f"最终类别：{7 if QUESTIONS[0] in prompt else 1}") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "40 pairs judged by judge-7b" in annotate("prefill", round_, "--model", "judge-7b", "--show").stdout
    assert all(f"{choice.label} {choice.name}：" in server.asked[0][0]["messages"][0]["content"] for choice in CHOICES)
    judged = {(each["kind"], each["model"], each["question"]) for each in judgments(round_)}
    assert judged == {("model", "judge-7b", "errors")}
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_text(encoding="utf-8"))
    assert {task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks} == {"1", "7"}
    found = json.loads(run("baselines", "errors", "--tally", round_, "--model", "judge-7b", "--format", "json").stdout)
    assert {key: row["pairs"] for key, row in found["categories"].items() if row["pairs"]} == {
        **{"entity_mismatch": 35, "false_negative": 5}
    }
    assert "add some by `annotate import`" in run("baselines", "errors", "--tally", round_, code=1).error
