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

from builders.core.words import SEGMENTERS, segmenter_version, word_cutter
from builders.release.rows import find_sources, parse_rows
from builders.sources.lines import read_blocks

_BATCH = 100  # texts per task of a process
_SHOWN_DIFFERENCES = 20


def _raw_texts(paths: list[Path]) -> Iterator[str]:
    """Yield the questions, answers and paragraphs of files of DuReader rows."""
    for block in read_blocks(find_sources(paths)):
        for _, row in parse_rows(block):
            yield row.question
            yield from row.answers or []
            for document in row.documents:
                yield from document.paragraphs


def _line_texts(paths: list[Path]) -> Iterator[str]:
    """Yield the lines of files, which may be gzipped."""
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        yield from content.decode().rstrip("\n").split("\n")


def _measure(texts: list[str], characters: int, repeats: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Return the speeds on a sample of about ``characters`` characters, and the differences on all texts."""
    # Measure the speeds.
    total_characters = sum(map(len, texts))
    sample = texts[:: max(1, total_characters // characters)]
    timed_characters = sum(map(len, sample))
    ways: dict[Any, Any] = {}
    for name in SEGMENTERS:
        ways["one_core", name] = lambda name=name: _cut(name, sample)
    for name in SEGMENTERS:
        ways["all_cores", name] = lambda name=name: list(pool.map(_cut, itertools.repeat(name), _batches(sample)))
    seconds, _ = in_turns(ways, repeats)
    speeds: dict[str, dict[str, int]] = {}
    ratios = {}
    fast_segmenter, slow_segmenter = SEGMENTERS
    for cores in ("one_core", "all_cores"):
        speeds[cores] = {name: round(timed_characters / seconds[cores, name]) for name in SEGMENTERS}
        ratios[cores] = round(seconds[cores, slow_segmenter] / seconds[cores, fast_segmenter], 2)

    # Compare the words.
    differing_texts: list[str] = []
    for batch_texts in pool.map(_select_differing, _batches(texts)):
        differing_texts += batch_texts
    differences: list[str] = []
    for text in differing_texts:
        differences += _differences(text)
    return {
        "texts": len(texts),
        "characters": total_characters,
        "timed_characters": timed_characters,
        "characters_per_second": speeds,
        "ratio": ratios,
        "identical_texts": len(texts) - len(differing_texts),
        "identical_share": round(1 - len(differing_texts) / len(texts), 6),
        "different_places": differences[:_SHOWN_DIFFERENCES],
    }


def _batches(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]


def _cut(name: str, texts: list[str]) -> None:
    cut = word_cutter(name)
    for text in texts:
        cut(text)


def _select_differing(texts: list[str]) -> list[str]:
    """Return the texts that the two segmenters cut differently."""
    first_cut, second_cut = map(word_cutter, SEGMENTERS)
    return [text for text in texts if first_cut(text) != second_cut(text)]


def _differences(text: str) -> Iterator[str]:
    """Yield different cuts with the words before and after, for example ``稳定|常在|的 and 稳定|常|在|的``."""
    # A segmenter's word ends, as positions in the text. A difference lies between two neighbouring shared ends.
    ends_by_segmenter = []
    for name in SEGMENTERS:
        word_lengths = map(len, word_cutter(name)(text))
        ends_by_segmenter.append({0, *itertools.accumulate(word_lengths)})
    shared_ends = sorted(set.intersection(*ends_by_segmenter))
    for number, (low, high) in enumerate(itertools.pairwise(shared_ends)):
        if not any(low < end < high for end in set.union(*ends_by_segmenter)):
            continue
        context_low = shared_ends[max(0, number - 1)]
        context_high = shared_ends[min(len(shared_ends) - 1, number + 2)]
        forms = []
        for word_ends in ends_by_segmenter:
            context_ends = sorted(end for end in word_ends if context_low <= end <= context_high)
            forms.append("|".join(text[start:end] for start, end in itertools.pairwise(context_ends)))
        yield " and ".join(forms)


def main() -> None:
    parser = parser_of(__doc__, "--repeats", "--json")
    parser.add_argument("--raw", nargs="+", type=Path, default=[], metavar="PATH", help="files of DuReader rows")
    parser.add_argument("--lines", nargs="+", type=Path, default=[], metavar="PATH", help="texts by line, .gz or plain")
    parser.add_argument("--characters", type=int, default=1_000_000, help="size of the timed sample (default: 1000000)")
    args = parser.parse_args()
    figures = machine(*SEGMENTERS)
    figures["repeats"] = args.repeats
    figures["texts"] = {}
    figures["segmenters"] = [segmenter_version(name) for name in SEGMENTERS]
    with ProcessPoolExecutor(figures["cores"], multiprocessing.get_context("spawn")) as pool:
        for name, texts in (("raw", _raw_texts(args.raw)), ("lines", _line_texts(args.lines))):
            unique_texts = list(dict.fromkeys(texts))
            if unique_texts:
                figures["texts"][name] = _measure(unique_texts, args.characters, args.repeats, pool)
    if not figures["texts"]:
        parser.error("no texts; give --raw or --lines")
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
