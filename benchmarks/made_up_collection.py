"""A collection of any size in the format of the official archive: passages of real text, and made-up questions.

Every passage joins two stretches of sentences of the source texts. Stretches are drawn at random, so a source of
10 million characters yields millions of distinct passages. A made-up question is a clause of a passage, followed by a
question word. Its positives are this passage and the following passages. The questions have the paper's numbers of
positives, but scores on them say nothing about a search engine.
"""

import gzip
import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_TEXT_SUFFIXES = (".txt", ".json", ".jsonl", ".tsv", ".csv", "")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_SENTENCE = re.compile(r"[^。！？\n]*[。！？\n]?")
_CLAUSE_END = re.compile(r"[，。！？；：、\s\"“”（）()]+")
_SHORTEST_SENTENCE, _LONGEST_SENTENCE = 4, 300  # characters
_SHORTEST_CLAUSE, _LONGEST_CLAUSE = 4, 14
# Characters of a passage: Table 3 has a mean of 358.
_SHORTEST_PASSAGE, _LONGEST_PASSAGE = 256, 460
_QUESTION_WORDS = ("是什么", "怎么办", "为什么", "有哪些", "是多少", "怎么样")
# Positives of a question: the mean is about 2.6 in train and 4.9 in dev (Table 3).
_MOST_POSITIVES = {"train": 4, "dev": 9}
# Questions of each split for one question of train. Table 3 has 86,395, 2,000 and 4,000 questions of train, dev and
# test. The official files divide test into test1 (1,000) and test2 (3,000).
_SHARES = {"train": 1.0, "dev": 2_000 / 86_395, "test1": 1_000 / 86_395, "test2": 3_000 / 86_395}
_FEWEST_QUESTIONS = 10  # of a split


def read_sentences(paths: Iterable[Path], most_characters: int) -> list[str]:
    """Return the Chinese sentences of text files, plain or gzipped, up to a number of characters.

    Exits if there is no Chinese sentence.
    """
    sentences = []
    character_count = 0
    for path in _text_files(paths):
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8", errors="ignore") as file:
            for line in file:
                for sentence in _SENTENCE.findall(line):
                    stripped = sentence.strip()
                    is_usable = _SHORTEST_SENTENCE <= len(stripped) <= _LONGEST_SENTENCE and _CHINESE.search(stripped)
                    if is_usable:
                        sentences.append(stripped)
                        character_count += len(stripped)
                if character_count >= most_characters:
                    return sentences
    if not sentences:
        raise SystemExit("no Chinese sentence found; expected text files (.txt, .jsonl, .gz)")
    return sentences


def _text_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and the text files of folders in the order of their names."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            plain_name = file.name.removesuffix(".gz")
            if file.is_file() and Path(plain_name).suffix in _TEXT_SUFFIXES:
                yield file


def made_up_passages(sentences: list[str], count: int, seed: int = 0) -> Iterator[str]:
    """Yield ``count`` distinct passages."""
    generator = random.Random(seed)
    seen_hashes = set()
    while len(seen_hashes) < count:
        length = generator.randint(_SHORTEST_PASSAGE, _LONGEST_PASSAGE)
        passage = _stretch(sentences, generator, length // 2) + _stretch(sentences, generator, length // 2)
        # The hash takes less memory than the text. Passages with equal hashes are skipped, equal or not.
        passage_hash = hash(passage)
        if passage_hash not in seen_hashes:
            seen_hashes.add(passage_hash)
            yield passage


def _stretch(sentences: list[str], generator: random.Random, length: int) -> str:
    """Return ``length`` characters of consecutive sentences, beginning with a random sentence.

    The first sentence follows the last sentence.
    """
    start = generator.randrange(len(sentences))
    stretch = ""
    while len(stretch) < length:
        stretch += sentences[start % len(sentences)]
        start += 1
    return stretch[:length]


def write_collection(folder: Path, sentences: list[str], passage_count: int, query_count: int) -> dict[str, int]:
    """Write the files of the original release, and return the number of questions of each split.

    ``query_count`` is the number of training questions. The other splits have the paper's shares.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = {split: max(_FEWEST_QUESTIONS, round(share * query_count)) for split, share in _SHARES.items()}
    generator = random.Random(1)
    # Questions are made from evenly spread passages, so that no passage is a positive of two questions.
    all_questions = sum(counts.values())
    distance = passage_count // all_questions
    if distance <= max(_MOST_POSITIVES.values()):
        raise SystemExit(f"{passage_count} passages are too few for {all_questions} questions; raise --passages")
    splits = [split for split, count in counts.items() for _ in range(count)]
    generator.shuffle(splits)

    seen_questions: set[str] = set()
    split_files = {split: open(folder / f"{split}.json", "w", encoding="utf-8") for split in counts}  # noqa: SIM115
    with open(folder / "passage_collection.json", "w", encoding="utf-8") as collection_file:
        # The latest question: its row, its split, and the number of passages that the row still waits for. A row of a
        # test file has no positives. It waits only for the passage that the question is made from.
        open_row: dict[str, Any] = {}
        split, missing_positives = "", 0
        for number, passage in enumerate(made_up_passages(sentences, passage_count)):
            passage_row = {"paragraph_id": _md5(passage), "paragraph_text": passage}
            collection_file.write(json.dumps(passage_row, ensure_ascii=False) + "\n")
            question_number, position = divmod(number, distance)
            if position == 0 and question_number < all_questions:
                split = splits[question_number]
                question = make_question(passage, generator, seen_questions)
                open_row = {"question_id": _md5(question), "question": question}
                if split in _MOST_POSITIVES:
                    open_row["answer_paragraphs"] = []
                missing_positives = generator.randint(1, _MOST_POSITIVES.get(split, 1))
            if missing_positives:
                if "answer_paragraphs" in open_row:
                    open_row["answer_paragraphs"].append(passage_row)
                missing_positives -= 1
                if not missing_positives:
                    split_files[split].write(json.dumps(open_row, ensure_ascii=False) + "\n")
    for file in split_files.values():
        file.close()
    return counts


def make_question(passage: str, generator: random.Random, seen_questions: set[str]) -> str:
    """Return a question about a passage that is not in ``seen_questions``, and add the question to them."""
    clauses = []
    for clause in _CLAUSE_END.split(passage):
        if len(clause) >= _SHORTEST_CLAUSE and _CHINESE.search(clause):
            clauses.append(clause[:_LONGEST_CLAUSE])
    generator.shuffle(clauses)
    question = ""
    for clause in [*clauses, passage[:_LONGEST_CLAUSE]]:
        question = clause + generator.choice(_QUESTION_WORDS)
        if question not in seen_questions:
            break
    while question in seen_questions:
        question = f"{passage[:_LONGEST_CLAUSE]}{len(seen_questions)}{generator.choice(_QUESTION_WORDS)}"
    seen_questions.add(question)
    return question


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()
