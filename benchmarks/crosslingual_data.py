"""Create small real data for the cross-lingual experiments (Section 3.7) from XQuAD and a table of sentence pairs.

XQuAD has the same questions and paragraphs in English and Chinese. Articles alternate between train and dev. Sentence
pairs (for example Tatoeba's) add training questions. The Chinese sentence of a pair is both the question and the
passage, and the English sentence is the question's translation. The outputs are train.json and dev.json for `builders
squad`, and translations.tsv for `builders add crosslingual`. The program prints these commands.

Example:

  python benchmarks/crosslingual_data.py --xquad xquad --pairs cmn.txt.gz --size 5000 --out build/crosslingual-data
"""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

from common import parser_of

from builders.core.files import atomic_text, read_utf8, write_text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--xquad", type=Path, required=True, metavar="DIR", help="folder of xquad.{en,zh}.json")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE", help="lines of English, tab, Chinese")
    size = "use N pairs, evenly spaced (default: 5000)"
    parser.add_argument("--size", type=int, default=5000, metavar="N", help=size)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    args = parser.parse_args()
    chinese, english = (
        json.loads(read_utf8(args.xquad / f"xquad.{language}.json"))["data"] for language in ("zh", "en")
    )
    translations = [(zh["question"], en["question"]) for zh, en in zip(_asked(chinese), _asked(english), strict=True)]
    pairs = sentence_pairs(args.pairs, args.size)
    translations += [(zh, en) for en, zh in pairs]
    sentences = [{"context": zh, "qas": [{"question": zh}]} for _, zh in pairs]
    for name, articles in (("train", [*chinese[::2], {"paragraphs": sentences}]), ("dev", chinese[1::2])):
        write_text(args.out / f"{name}.json", json.dumps({"data": articles}, ensure_ascii=False) + "\n")
    with atomic_text(args.out / "translations.tsv") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        table.writerow(["zh", "english"])
        table.writerows(translations)
    print(f"python -m builders squad --train {args.out}/train.json --dev {args.out}/dev.json --out RELEASE")
    print(f"python -m builders add crosslingual --source {args.out}/translations.tsv --release RELEASE --out RELEASE")


def sentence_pairs(path: Path, size: int) -> list[tuple[str, str]]:
    """Return up to ``size`` pairs (English, Chinese), evenly spaced over lines with distinct Chinese sentences."""
    found: dict[str, str] = {}
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            en, zh, *_ = line.rstrip("\n").split("\t")
            found.setdefault(zh, en)
    every = [(en, zh) for zh, en in found.items()]
    count = min(size, len(every))
    return [every[n * len(every) // count] for n in range(count)]


def _asked(articles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for article in articles for paragraph in article["paragraphs"] for row in paragraph["qas"]]


if __name__ == "__main__":
    main()
