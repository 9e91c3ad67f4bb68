"""Data in which word matching fails, because an answer uses synonyms of the question's words.

Every question word has one synonym. Only the training questions show which words are synonyms. An answer has the
synonyms of the question's words, and other question words. A passage with the question's own words is no answer.
"""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from releases import make_release, md5

Row = dict[str, Any]


def words(first: str, count: int) -> list[str]:
    syllables = [first + vowel for vowel in "aeiou"], [c + v for c in "bdfgklmnp" for v in "aeiou"]
    return ["".join(pair) for pair in itertools.product(*syllables)][:count]


def make_synonyms(path: Path, questions: int = 600, dev: int = 60, size: int = 6, each: int = 2) -> tuple[Path, Path]:
    """Write the release, and a file of hard negatives: four passages with the words of each question.

    All passages have the same form: ``each`` question words, ``each`` synonyms, and one empty word. Questions have an
    empty word, too. An empty word can be Chinese, so that a tokenizer of these texts knows a Chinese character. All
    texts are different.
    """
    chance = random.Random(0)
    asked, said, empty = words("s", size), words("t", size), [*words("r", 40), "的"]
    synonym = dict(zip(asked, said, strict=True))
    sets = list(itertools.combinations(asked, each))
    rows: dict[tuple[str, str], list[Row]] = {("corpus", "corpus"): []}
    for split in ("train", "dev"):
        rows["queries", split], rows["qrels", split] = [], []
    seen: set[str] = set()

    def new(make: Callable[[], list[str]]) -> str:
        while True:
            parts = [*make(), chance.choice(empty)]
            text = " ".join(chance.sample(parts, len(parts)))
            if text not in seen:
                seen.add(text)
                return text

    negatives = []
    for split, count in (("train", questions), ("dev", dev)):
        for _ in range(count):
            question = new(lambda: list(chance.choice(sets)))
            picked = [word for word in question.split() if word in synonym]
            others = [word for word in asked if word not in picked]
            answer = new(lambda p=picked, o=others: [synonym[word] for word in p] + chance.sample(o, each))
            hard = [
                new(lambda p=picked, o=others: p + [synonym[word] for word in chance.sample(o, each)]) for _ in range(4)
            ]
            rows["corpus", "corpus"] += [{"_id": md5(text), "title": "", "text": text} for text in (answer, *hard)]
            rows["queries", split].append({"_id": md5(question), "text": question})
            rows["qrels", split].append({"query-id": md5(question), "corpus-id": md5(answer), "score": 1})
            negatives.append({"query-id": md5(question), "negative-ids": [md5(text) for text in hard]})
    make_release(path, rows, rows_per_shard=10_000)
    file = path.with_name("negatives.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in negatives), encoding="utf-8")
    return path, file
