"""Rule ``numerals``: the query asks for one number, the passage has another of the same kind.

Numerals are years, quantities with their unit, ordinals, and numbers that belong to a name (iphone6, 科目三), in
Arabic or Chinese digits: 2016 is 二零一六, 100 is 一百. Two are of the same kind where they have the same unit (岁,
公斤 = 千克 = kg), or the same name before them. A query's numeral differs where the passage has numerals of its kind,
and none of its value; where it has none of the kind, nothing is said: the number may matter or not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

# A line a unit: the form that it is compared in, then others.
_UNITS = {
    form: line.split()[0]
    for line in """
    岁 周岁
    年
    年级
    个月
    月
    周 星期
    天
    日 号
    小时 钟头
    分钟
    元 块
    斤
    公斤 千克 kg
    克
    米
    厘米 公分 cm
    毫米 mm
    公里 千米 km
    寸 英寸
    平方 平米
    立方
    升
    毫升 ml
    度 ℃
    层 楼
    gb g
    """.splitlines()
    for form in line.split()
} | {unit: unit for unit in "匹级代次人集章课页个核版班路届期瓦安%"}
# 一个, 一天, 一次, and 哪两个, say nothing of a number.
_VAGUE = {"个", "天", "次", "年", "月", "周", "人", "元", "版", "路", "期", "日", "集", "班"}
_LONGEST = 20  # characters of a number
_TIMES = {"千": 1_000, "万": 10_000, "亿": 100_000_000}
_DIGITS = "零〇一二两三四五六七八九"
_CHINESE = f"(?:[{_DIGITS}十百万亿]|千(?![克瓦米]))+"
_NUMERAL = re.compile(
    r"(?P<name>(?<![a-z])[a-z]{1,20}[ -]?|科目|[高初大](?=[一二三四])|[\u4e00-\u9fff]{2}(?=\d))?(?P<ordinal>第)?"
    rf"(?P<number>\d+(?:\.\d+)?|{_CHINESE}(?:点[{_DIGITS}]+)?)(?P<times>千(?![克瓦米])|[万亿])?(?P<of>个)?"
)
_UNIT = re.compile("|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True)))
_YEAR = re.compile(r"(?:1[89]|20)\d\d")
_CHINESE_YEAR = re.compile(r"[一二][零〇八九][零〇一二三四五六七八九]{2}")


class Numeral(NamedTuple):
    """A number as it stands in a text, its value, and what it is a number of."""

    text: str
    value: float
    kinds: frozenset[str]


def numerals(text: str) -> list[Numeral]:
    """The numerals of a text that have a kind, in order."""
    return list(_numerals(unicodedata.normalize("NFKC", text).lower()))


def differing(query: str, passage: str) -> tuple[str, str] | None:
    """(in the query, in the passage): the first numeral that differs, and the nearest of its kind; None for none."""
    there = numerals(passage)
    for asked in numerals(query):
        alike = [found for found in there if found.kinds & asked.kinds]
        if alike and all(found.value != asked.value for found in alike):
            nearest = min(alike, key=lambda found: abs(found.value - asked.value))
            return asked.text, nearest.text
    return None


def _numerals(text: str) -> Iterator[Numeral]:
    for found in _NUMERAL.finditer(text):
        number, name = found["number"], (found["name"] or "").strip(" -")
        value, end = _value(number), found.end()
        if value is None:
            continue
        value *= _TIMES[found["times"]] if found["times"] else 1
        if year := _year(number, found):
            yield Numeral(number, year, frozenset({"year"}))
            continue
        of = bool(found["of"] and not found["ordinal"])  # 个 is a unit, or begins one: 个月
        unit = _UNIT.match(text, end - of)
        shown = unit[0] if unit else ""
        kind = _UNITS[shown] if shown else ""
        is_chinese = not number[0].isdigit()
        if not found["ordinal"] and ((number == "一" and kind in _VAGUE) or (number == "两" and kind == "个")):
            continue
        kinds = {f"第{kind}"} if found["ordinal"] else {kind} if kind else set()
        if (found["times"] or number[-1] in "万亿") and not found["ordinal"]:
            kinds.add("万")
        if name and not (is_chinese and kind):
            kinds.add(name)
        if kinds:
            yield Numeral(
                f"{name}{found['ordinal'] or ''}{number}{found['times'] or ''}{shown}", value, frozenset(kinds)
            )


def _year(number: str, found: re.Match[str]) -> int | None:
    """The year that a number is: four digits, or the last two of them before 年."""
    if found["times"] or found["ordinal"]:
        return None
    is_named = found.string.startswith("年", found.end())
    if _CHINESE_YEAR.fullmatch(number) and is_named:
        return int("".join(str(int(unicodedata.numeric(digit))) for digit in number))
    if _YEAR.fullmatch(number) and (is_named or not _UNIT.match(found.string, found.end())):
        return int(number)
    if re.fullmatch(r"0\d|[5-9]\d", number) and is_named:
        return int(number) + (2000 if number[0] == "0" else 1900)
    return None


def _value(number: str) -> float | None:
    """The value of Arabic or Chinese digits; None where they are none, as in 千万."""
    if len(number) > _LONGEST:
        return None
    if number[0].isdigit():
        return float(number)
    import cn2an

    try:
        return float(cn2an.cn2an(number, "smart"))
    except (ValueError, KeyError):  # the second for what it takes for a number at first
        return None
