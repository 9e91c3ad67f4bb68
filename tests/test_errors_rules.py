"""The rules of ``errors``: what each finds, what it does not, and what it is worth on the hand-made cases."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from commands import run

from baselines.errors.duplicates import near_duplicate
from baselines.errors.entities import absent
from baselines.errors.measure import read_cases
from baselines.errors.numerals import differing, numerals
from baselines.errors.overlap import only_shared
from baselines.errors.rules import Error, findings
from baselines.errors.typos import typo
from builders.annotate.questions import ERRORS

RECIPE = "冷水下锅，水里放一小勺盐，小火慢慢烧开，水开后再煮八分钟，关火焖两分钟，捞出来放进凉水里。"


@pytest.mark.parametrize(
    ("query", "passage", "found"),
    [
        ("2016年春节放假", "2017年春节放假安排", ("2016", "2017")),
        ("二零一五年考研", "2018年考研时间", ("二零一五", "2018")),
        ("二〇一五年考研", "2015年考研时间", None),
        ("２０１５年考研", "2018年考研时间", ("2015", "2018")),
        ("98年属什么", "1998年出生的人属虎", None),
        ("三个月宝宝", "6个月的宝宝", ("三个月", "6个月")),
        ("三个月宝宝", "3个月的宝宝", None),
        ("一百斤", "100斤", None),
        ("2公斤大米", "3kg大米", ("2公斤", "3kg")),
        ("五万存三年", "10万元存三年", ("五万", "10万元")),
        ("科目三技巧", "科目二技巧", ("科目三", "科目二")),
        ("第三代身份证", "第二代身份证", ("第三代", "第二代")),
        ("iphone6电池", "iphone 7 电池", ("iphone6", "iphone7")),
        ("苹果6怎么用", "苹果8怎么用", ("苹果6", "苹果8")),
        ("一个人住", "三个人住", None),
        ("千万别买", "三万元的车", None),
        ("2016年的歌", "好听的歌", None),
        ("3岁发烧", "39度是高烧", None),
    ],
)
def test_numerals_differ_where_the_passage_has_another_of_the_same_kind(
    query: str, passage: str, found: tuple[str, str] | None
) -> None:
    assert differing(query, passage) == found


def test_the_nearest_of_a_kind_is_named_and_an_equal_one_anywhere_is_enough() -> None:
    assert differing("12岁", "3岁、5岁、10岁和40岁") == ("12岁", "10岁")
    assert differing("12岁", "3岁、5岁、十二岁和40岁") is None


@pytest.mark.parametrize("text", ["十十两岁", "千万岁", "百十零天", "一" * 5_000 + "岁", "9" * 5_000 + "岁", "٣岁"])
def test_what_only_looks_like_a_number_is_none_or_passed_over(text: str) -> None:
    assert differing(text, "7岁、8天") in (None, ("٣岁", "7岁"))


def test_a_kilogram_is_no_thousand() -> None:
    assert [(each.value, each.kinds) for each in numerals("一千克，2千克")] == [(1, {"公斤"}), (2, {"公斤"})]


@pytest.mark.parametrize(
    ("query", "passage", "positives", "found"),
    [
        ("ipone铃声", "手机铃声", ["iphone铃声"], ("ipone", "iphone")),
        ("phtoshp抠图", "抠图", ["Photoshop抠图"], ("phtoshp", "photoshop")),
        ("pyhton画图", "画图", ["python画图"], ("pyhton", "python")),
        ("minecraft存档", "mincraft存档", ["minecraft存档"], ("minecraft", "mincraft")),
        ("iphone铃声", "iphone铃声", ["ipone铃声"], None),
        ("player下载", "下载", ["playing下载"], None),
        ("word教程", "教程", ["excel教程"], None),
        ("mate刷机", "刷机", ["date"], None),
    ],
)
def test_a_typo_is_an_edit_away_from_the_passage_or_a_positive(
    query: str, passage: str, positives: list[str], found: tuple[str, str] | None
) -> None:
    assert typo(query, passage, positives) == found


def test_names_that_the_passage_lacks_are_found() -> None:
    assert absent("成都到重庆坐动车多久", "从西安坐动车去重庆") == ["成都"]
    assert absent("刘德华和周杰伦", "刘德华唱歌") == ["周杰伦"]


def test_a_place_or_school_stands_without_its_last_characters_too() -> None:
    assert absent("四川省的特产", "四川特产有腊肉") == []
    assert absent("清华大学在哪", "清华在北京") == []


def test_a_name_that_most_positives_lack_counts_for_nothing() -> None:
    assert absent("长沙的特产", "特产很多", ["臭豆腐", "糖油粑粑", "长沙臭豆腐"]) == []
    assert absent("长沙的特产", "特产很多", ["长沙糖油粑粑", "长沙臭豆腐"]) == ["长沙"]


def test_a_noun_in_common_and_nothing_else_is_mere_overlap() -> None:
    query = "dnf邮件取不出来怎么办"
    assert only_shared(query, "昨天登录DNF抽到了神器") == "dnf"
    assert only_shared(query, "DNF的邮件在右下角") is None
    assert only_shared(query, "昨天买了一台新手机") is None
    assert only_shared(query, "昨天登录DNF抽到了神器", ["dnf客服", "等一会儿再看"]) is None


def test_a_near_copy_of_a_positive_is_found_wherever_it_is_cut() -> None:
    assert near_duplicate(f"答：{RECIPE}", [RECIPE]) == pytest.approx(1, abs=0.1)
    assert near_duplicate(
        f"{RECIPE}另外，鸡蛋要选新鲜的，提前半小时从冰箱里拿出来，壳上的水要擦干，煮好马上吃。", [RECIPE]
    )
    assert near_duplicate(RECIPE.replace("八", "8"), ["别的", RECIPE])
    assert near_duplicate("鸡蛋怎么煮都会破壳", [RECIPE]) is None
    assert near_duplicate("冷水下锅", [RECIPE]) is None


def test_a_pair_that_is_judged_is_no_false_negative() -> None:
    found = [findings(Error("怎么煮蛋", f"答：{RECIPE}", [RECIPE], judged)) for judged in (False, True)]
    assert [[each.category for each in said] for said in found] == [["false_negative"], []]


def test_the_same_text_but_for_the_name_is_about_another_thing() -> None:
    error = Error("成都地铁几点停运", f"长沙地铁：{RECIPE}", [f"成都地铁：{RECIPE}"])
    assert [each.rule for each in findings(error)][:2] == ["entities", "duplicates"]


def test_the_cases_are_of_every_category_and_each_once() -> None:
    cases = read_cases()
    assert set(Counter(case.category for case in cases if case.part == "second")) == {c.key for c in ERRORS.choices}
    assert len({(case.query, case.passage) for case in cases}) == len(cases) >= 150


def test_the_rules_are_worth_what_the_documentation_says() -> None:
    found = json.loads(run("baselines", "errors", "--measure", "--format", "json").stdout)["second"]["rules"]
    precision = {name: (row["counted"]["right"], row["counted"]["found"]) for name, row in found.items()}
    recall = {name: (row["counted"]["right"], row["cases"]) for name, row in found.items()}
    assert precision == {
        "numerals": (9, 9),
        "entities": (9, 12),
        "duplicates": (2, 2),
        "typos": (4, 4),
        "overlap": (6, 10),
    }
    assert recall == {
        "numerals": (9, 12),
        "entities": (9, 14),
        "duplicates": (2, 9),
        "typos": (4, 8),
        "overlap": (6, 8),
    }
