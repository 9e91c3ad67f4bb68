"""Compare the compiled segmenter rjieba with jieba: speed, and the share of texts with different words.

Speed is measured in characters per second on an evenly spaced sample of the texts, on one core and on all cores. Both
segmenters take turns, and figures are medians. Words are compared on every text. A text is a paragraph, an answer or a
question of --raw, or a line of --lines.

Example:

  python benchmarks/segment.py --raw dureader_raw.zip --lines news.txt.gz --out segment.json
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builders.core.words import SEGMENTERS, cutter, segmenter_version  # noqa: E402
from builders.release.rows import find_sources, parse_rows  # noqa: E402
from builders.sources.lines import read_blocks  # noqa: E402

_BATCH = 100  # texts per task of a process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", nargs="+", type=Path, default=[], metavar="PATH", help="files of DuReader rows")
    parser.add_argument("--lines", nargs="+", type=Path, default=[], metavar="PATH", help="texts by line, .gz or plain")
    parser.add_argument("--characters", type=int, default=1_000_000, help="size of the timed sample (default: 1000000)")
    parser.add_argument("--repeats", type=int, default=5, help="runs for each figure (default: 5)")
    parser.add_argument("--out", type=Path, help="JSON file for the figures (default: no file)")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    figures: dict[str, Any] = {
        "cores": cores,
        "repeats": args.repeats,
        "load_before": round(os.getloadavg()[0], 1),
        "segmenters": [segmenter_version(name) for name in SEGMENTERS],
        "versions": {name: version(name) for name in SEGMENTERS} | {"python": platform.python_version()},
        "texts": {},
    }
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context) as pool:
        for name, texts in (("raw", _raw_texts(args.raw)), ("lines", _lines(args.lines))):
            unique = list(dict.fromkeys(texts))
            if unique:
                figures["texts"][name] = _measure(unique, args.characters, args.repeats, cores, pool)
    if not figures["texts"]:
        parser.error("no texts; give --raw or --lines")
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def _raw_texts(paths: list[Path]) -> Iterator[str]:
    for block in read_blocks(find_sources(paths)):
        for _, row in parse_rows(block):
            yield row.question
            yield from row.answers or []
            for document in row.documents:
                yield from document.paragraphs


def _lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as lines:
            yield from (line.rstrip("\n") for line in lines)


def _measure(texts: list[str], characters: int, repeats: int, cores: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    total = sum(map(len, texts))
    sample = texts[:: max(1, total // characters)]
    batches = _batches(sample)
    for name in SEGMENTERS:  # load the dictionaries before the measurement
        cutter(name)
        list(pool.map(_cut, [name] * 8 * cores, batches[:1] * 8 * cores))
    speeds: dict[str, list[list[float]]] = {"one_core": [], "all_cores": []}
    for _ in range(repeats):
        speeds["one_core"].append([_speed(sample, (_cut(name, sample) for _ in "1")) for name in SEGMENTERS])
        speeds["all_cores"].append(
            [_speed(sample, pool.map(_cut, [name] * len(batches), batches)) for name in SEGMENTERS]
        )
    different = [text for part in pool.map(_different, _batches(texts)) for text in part]
    return {
        "texts": len(texts),
        "characters": total,
        "timed_characters": sum(map(len, sample)),
        "characters_per_second": {
            where: {name: round(statistics.median(run[place] for run in runs)) for place, name in enumerate(SEGMENTERS)}
            for where, runs in speeds.items()
        },
        "ratio": {
            where: round(statistics.median(run[0] / run[1] for run in runs), 2) for where, runs in speeds.items()
        },
        "identical_texts": len(texts) - len(different),
        "identical_share": round(1 - len(different) / len(texts), 6),
        "different_places": [place for text in different for place in _places(text)][:20],
    }


def _batches(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]


def _speed(texts: list[str], work: Iterable[int]) -> float:
    started = time.perf_counter()
    words = sum(work)
    seconds = time.perf_counter() - started
    assert words > 0
    return sum(map(len, texts)) / seconds


def _cut(name: str, texts: list[str]) -> int:
    cut = cutter(name)
    return sum(len(cut(text)) for text in texts)


def _different(texts: list[str]) -> list[str]:
    first, second = map(cutter, SEGMENTERS)
    return [text for text in texts if first(text) != second(text)]


def _places(text: str) -> Iterator[str]:
    """Yield the differences of the segmenters, with a word of context: ``稳定|常在|的 and 稳定|常|在|的``."""
    cuts = []
    for name in SEGMENTERS:
        place, ends = 0, {0}
        for word in cutter(name)(text):
            place += len(word)
            ends.add(place)
        cuts.append(ends)
    shared = sorted(cuts[0] & cuts[1])
    for place in range(len(shared) - 1):
        low, high = shared[place], shared[place + 1]
        if any(low < end < high for ends in cuts for end in ends):
            low, high = shared[max(0, place - 1)], shared[min(len(shared) - 1, place + 2)]
            forms = (sorted(end for end in ends if low <= end <= high) for ends in cuts)
            yield " and ".join("|".join(text[a:b] for a, b in itertools.pairwise(form)) for form in forms)


if __name__ == "__main__":
    main()
