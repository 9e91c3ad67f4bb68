"""Compare the compiled segmenter rjieba with jieba: speed, and the share of texts with different words.

Speed is measured in characters per second on an evenly spaced sample of the texts, on one core and on all cores. The
segmenters take turns, and figures are medians after one warm-up. Words are compared on every text. A text is a
paragraph, an answer or a question of --raw, or a line of --lines.

Example:

  python benchmarks/segment.py --raw dureader_raw.zip --lines news.txt.gz --json segment.json
"""

import gzip
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from common import in_turns, machine, parser_of, write_json

from builders.core.words import SEGMENTERS, cutter, segmenter_version
from builders.release.rows import find_sources, parse_rows
from builders.sources.lines import read_blocks

_BATCH = 100  # texts per task of a process


def _raw_texts(paths: list[Path]) -> Iterator[str]:
    for block in read_blocks(find_sources(paths)):
        for _, row in parse_rows(block):
            yield row.question
            yield from row.answers or []
            for document in row.documents:
                yield from document.paragraphs


def _lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield from content.decode().rstrip("\n").split("\n")


def _measure(texts: list[str], characters: int, repeats: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    total = sum(map(len, texts))
    sample = texts[:: max(1, total // characters)]
    timed = sum(map(len, sample))
    ways: dict[Any, Any] = {("one_core", name): lambda name=name: _cut(name, sample) for name in SEGMENTERS}
    for name in SEGMENTERS:
        ways["all_cores", name] = lambda name=name: list(pool.map(_cut, itertools.repeat(name), _batches(sample)))
    seconds, _ = in_turns(ways, repeats)
    different = [text for part in pool.map(_different, _batches(texts)) for text in part]
    places = ("one_core", "all_cores")
    first, second = SEGMENTERS
    return {
        "texts": len(texts),
        "characters": total,
        "timed_characters": timed,
        "characters_per_second": {
            place: {name: round(timed / seconds[place, name]) for name in SEGMENTERS} for place in places
        },
        "ratio": {place: round(seconds[place, second] / seconds[place, first], 2) for place in places},
        "identical_texts": len(texts) - len(different),
        "identical_share": round(1 - len(different) / len(texts), 6),
        "different_places": [place for text in different for place in _places(text)][:20],
    }


def _batches(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]


def _cut(name: str, texts: list[str]) -> None:
    cut = cutter(name)
    for text in texts:
        cut(text)


def _different(texts: list[str]) -> list[str]:
    first, second = map(cutter, SEGMENTERS)
    return [text for text in texts if first(text) != second(text)]


def _places(text: str) -> Iterator[str]:
    """Yield different cuts with the words before and after, for example ``稳定|常在|的 and 稳定|常|在|的``."""
    cuts = [{0, *itertools.accumulate(map(len, cutter(name)(text)))} for name in SEGMENTERS]
    shared = sorted(cuts[0] & cuts[1])
    for place in range(len(shared) - 1):
        low, high = shared[place], shared[place + 1]
        if any(low < end < high for ends in cuts for end in ends):
            low, high = shared[max(0, place - 1)], shared[min(len(shared) - 1, place + 2)]
            forms = (sorted(end for end in ends if low <= end <= high) for ends in cuts)
            yield " and ".join("|".join(text[a:b] for a, b in itertools.pairwise(form)) for form in forms)


def main() -> None:
    parser = parser_of(__doc__, "--repeats", "--json")
    parser.add_argument("--raw", nargs="+", type=Path, default=[], metavar="PATH", help="files of DuReader rows")
    parser.add_argument("--lines", nargs="+", type=Path, default=[], metavar="PATH", help="texts by line, .gz or plain")
    parser.add_argument("--characters", type=int, default=1_000_000, help="size of the timed sample (default: 1000000)")
    args = parser.parse_args()
    figures: dict[str, Any] = {**machine(*SEGMENTERS), "repeats": args.repeats, "texts": {}}
    figures["segmenters"] = [segmenter_version(name) for name in SEGMENTERS]
    with ProcessPoolExecutor(figures["cores"], multiprocessing.get_context("spawn")) as pool:
        for name, texts in (("raw", _raw_texts(args.raw)), ("lines", _lines(args.lines))):
            unique = list(dict.fromkeys(texts))
            if unique:
                figures["texts"][name] = _measure(unique, args.characters, args.repeats, pool)
    if not figures["texts"]:
        parser.error("no texts; give --raw or --lines")
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
