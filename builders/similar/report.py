"""The report of the verb ``contamination``: as text, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from builders.common.command import visible
from builders.common.tables import as_code, as_text
from builders.similar.likeness import HOW

Report = Mapping[str, Any]
_SHOWN = 60  # characters of an example
_HEAD = ["", "of", "found", "share", *HOW]


def as_json(report: Report) -> str:
    """Everything, as one JSON object."""
    return json.dumps(report, ensure_ascii=False, indent=1)


def as_plain(report: Report) -> str:
    """Aligned text: a table a file, and one for all."""
    lines = [_compared(report), ""]
    for title, part in _parts(report):
        lines.append(f"{visible(title)}: {_size(part)}")
        for row in [_HEAD, *_rows(part)]:
            lines.append(f"  {row[0]:<32}" + "".join(f"{cell:>11}" for cell in row[1:]).rstrip())
        for example in part.get("examples", ()):
            lines.append(f"  {_place(example)}: {_cut(example['text'])} = {_cut(example['found'])}")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(report: Report) -> str:
    """A page: a table a file with its examples, and one for all."""
    lines = ["# Contamination", "", _compared(report), ""]
    for title, part in _parts(report):
        lines += [f"## {as_text(title)}", "", f"{_size(part)}.", ""]
        lines += [f"| {' | '.join(_HEAD)} |", f"|---{'|---:' * (len(_HEAD) - 1)}|"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(part)]
        lines.append("")
        if examples := part.get("examples"):
            lines += ["| what | where | in the benchmark | in the pairs |", "|---|---|---|---|"]
            for each in examples:
                what = f"{each['kind']}, {each['how']} ({each['score']:g})"
                texts = f"{as_code(_cut(each['text']))} | {as_code(_cut(each['found']))}"
                lines.append(f"| {what} | line {each['line']:,} | {texts} |")
            lines.append("")
    return "\n".join(lines).rstrip()


FORMATS: dict[str, Callable[[Report], str]] = {"text": as_plain, "json": as_json, "markdown": as_markdown}


def _parts(report: Report) -> Iterator[tuple[str, Report]]:
    yield from ((part["file"], part) for part in report["files"])
    if len(report["files"]) > 1:
        yield "All files", report["all"]


def _compared(report: Report) -> str:
    options = report["options"]
    settings = [f"{name} {options[name]}" for name in ("ngram", "jaccard", "threshold") if name in options]
    return f"Compared with {' and '.join(options['splits'])}: {', '.join([*options['by'], *settings])}."


def _size(part: Report) -> str:
    return f"{part['rows']:,} rows, {part['texts']['questions']:,} questions, {part['texts']['passages']:,} passages"


def _rows(part: Report) -> Iterator[list[str]]:
    for split, kinds in part["splits"].items():
        for kind, found in kinds.items():
            share = f"{found['found'] / found['of']:.2%}" if found["of"] else "-"
            ways = [f"{found[how]:,}" if how in found else "" for how in HOW]
            yield [f"{split}: {kind}", f"{found['of']:,}", f"{found['found']:,}", share, *ways]


def _place(example: Report) -> str:
    return f"{example['kind']}, {example['how']} ({example['score']:g}), line {example['line']:,}"


def _cut(text: str) -> str:
    return visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
