"""Search with the pinyin of words beside the words, so that a wrong character of the same sound still matches.

    pip install pypinyin
    python examples/pinyin_tokens.py --release build/sample
    PYTHONPATH=examples python -m baselines bm25 --release build/sample --out RUN \\
      --tokenizer pinyin_tokens:words_and_pinyin

The program prints MRR@10 of BM25 with and without pinyin. docs/stress.md has scores on perturbed questions.
"""

import argparse
import re

from pypinyin import lazy_pinyin

from baselines import evaluate
from baselines.bm25.tokens import Analyzer

_CHINESE_WORD = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]{2,}")


def sound_of(word: str) -> str:
    """Return a word's pinyin as people type it, without tones and blanks."""
    return "".join(lazy_pinyin(word))


def words_and_pinyin(text: str) -> list[str]:
    """Return the tokens of a text, and the pinyin of each token of at least two Chinese characters."""
    split_text = Analyzer("both", drop_stop_words=True)  # the default of `bm25`
    tokens = split_text(text)
    return tokens + [sound_of(token) for token in tokens if _CHINESE_WORD.fullmatch(token)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="build/sample", help="release directory")
    options = parser.parse_args()
    for name, tokenizer in (("without pinyin", None), ("with pinyin", words_and_pinyin)):
        measures = evaluate("bm25", options.release, tokenizer=tokenizer)
        print(f"{name:14}  MRR@10 {100 * measures['MRR@10']:.2f}")


if __name__ == "__main__":
    main()
