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

from builders.core.read_files import read_utf8
from builders.core.write_files import atomic_text, write_text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--xquad", type=Path, required=True, metavar="DIR", help="folder of xquad.{en,zh}.json")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE", help="lines of English, tab, Chinese")
    size = "use N pairs, evenly spaced (default: 5000)"
    parser.add_argument("--size", type=int, default=5000, metavar="N", help=size)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    args = parser.parse_args()
    chinese = _read_articles(args.xquad / "xquad.zh.json")
    english = _read_articles(args.xquad / "xquad.en.json")

    # Translations of XQuAD's questions, and of the sentences, which are questions and passages at once.
    translations = []
    for zh_row, en_row in zip(_question_rows(chinese), _question_rows(english), strict=True):
        translations.append((zh_row["question"], en_row["question"]))
    sentence_paragraphs = []
    for english_sentence, chinese_sentence in sentence_pairs(args.pairs, args.size):
        translations.append((chinese_sentence, english_sentence))
        sentence_paragraphs.append({"context": chinese_sentence, "qas": [{"question": chinese_sentence}]})

    # Articles alternate between the splits. The sentences are one more training article.
    train_articles = [*chinese[::2], {"paragraphs": sentence_paragraphs}]
    for split, articles in (("train", train_articles), ("dev", chinese[1::2])):
        write_text(args.out / f"{split}.json", json.dumps({"data": articles}, ensure_ascii=False) + "\n")
    with atomic_text(args.out / "translations.tsv") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        table.writerow(["zh", "english"])
        table.writerows(translations)
    print(f"python -m builders squad --train {args.out}/train.json --dev {args.out}/dev.json --out RELEASE")
    print(f"python -m builders add crosslingual --source {args.out}/translations.tsv --release RELEASE --out RELEASE")


def sentence_pairs(path: Path, size: int) -> list[tuple[str, str]]:
    """Return up to ``size`` pairs (English, Chinese), evenly spaced over lines with distinct Chinese sentences."""
    english_by_chinese: dict[str, str] = {}
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            english_sentence, chinese_sentence, *_ = line.rstrip("\n").split("\t")  # the third column is the licence
            english_by_chinese.setdefault(chinese_sentence, english_sentence)
    distinct_pairs = [(english, chinese) for chinese, english in english_by_chinese.items()]
    pair_count = min(size, len(distinct_pairs))
    return [distinct_pairs[number * len(distinct_pairs) // pair_count] for number in range(pair_count)]


def _read_articles(path: Path) -> list[dict[str, Any]]:
    articles: list[dict[str, Any]] = json.loads(read_utf8(path))["data"]
    return articles


def _question_rows(articles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the questions of all paragraphs of all articles."""
    question_rows = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            question_rows += paragraph["qas"]
    return question_rows


if __name__ == "__main__":
    main()
