"""The training rows of the pre-processed release: ``dual.train.tsv`` and ``cross.train.tsv``, positives and negatives.

Where there is no ``train.json``, their positives say the questions of train and their judgments. Where both are given,
``train.json`` counts, and what the TSVs hold beyond it is counted and reported. Their negatives become
``negative_passages``: each once, in order, without those that are positive for their question.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from builders.official.numbered import Numbers
from builders.official.questions import Positive, Split
from builders.official.work import OfficialFile, Work

Pairs = list[tuple[int, int]]  # numbers of a question's and a passage's text


def read_training(work: Work, files: list[OfficialFile], split: Split) -> None:
    """Take the files' rows into ``split``: the whole files before their excerpts (``demo``), dual before cross."""
    positives: list[npt.NDArray[np.int32]] = []
    negatives: list[npt.NDArray[np.int32]] = []
    for file in sorted(files, key=lambda file: (".demo." in file.name, file.role == "cross")):
        texts, labels = _read_columns(work, file)
        query = texts["query"]
        file.rows = len(query)
        if file.role == "dual":
            positives.append(np.stack([query, texts["positive"]], axis=1))
            negatives.append(np.stack([query, texts["negative"]], axis=1))
        else:
            pairs = np.stack([query, texts["passage"]], axis=1)
            positives.append(pairs[labels == 1])
            negatives.append(pairs[labels == 0])
    _join(work, split, _distinct(positives), _distinct(negatives))


def _read_columns(work: Work, file: OfficialFile) -> tuple[dict[str, Numbers], npt.NDArray[np.int8]]:
    """The numbers of the file's texts by column, and its labels."""
    numbers: dict[str, list[Numbers]] = defaultdict(list)
    labels = [np.empty(0, np.int8)]
    for block in work.tsv_blocks(file):
        for name, column in block.columns.items():
            numbers[name].append(work.number_texts(column))
        labels.append(np.array(block.labels or [], np.int8))
    return {name: np.concatenate(found) for name, found in numbers.items()}, np.concatenate(labels)


def _distinct(pairs: list[npt.NDArray[np.int32]]) -> Pairs:
    """Distinct pairs in the order in which they come first."""
    every = np.concatenate(pairs)
    first = np.unique(every, axis=0, return_index=True)[1]
    return [(query, passage) for query, passage in every[np.sort(first)].tolist()]


def _join(work: Work, split: Split, positives: Pairs, negatives: Pairs) -> None:
    digests = work.texts.digests()
    ids = [key.tobytes() for key in work.passages.ids_of(digests)]
    judged = split.labelled  # by train.json
    if not judged:
        for query, passage in positives:
            new = split.by_text.get(query) or split.add(digests[query].tobytes(), query)
            new.positives.append(Positive(ids[passage], passage))
        split.labelled = True
    # By question: what is positive, by train.json or by a TSV. Such a passage is never a negative.
    positive = [{each.text for each in question.positives} for question in split.questions]
    for query, passage in positives if judged else ():
        question = split.by_text.get(query)
        if question is not None and passage not in positive[question.row]:
            positive[question.row].add(passage)
            what = "positives of the TSVs that train.json does not judge (left out)"
            work.findings.add(what, 1, ids[passage].hex())
    for query, passage in negatives:
        question = split.by_text.get(query)
        if question is None:
            continue
        if passage in positive[question.row]:
            what = "negatives of the TSVs that are positives of their question (left out)"
            work.findings.add(what, 1, ids[passage].hex())
        else:
            question.negatives.append(passage)
    unknown = {query for query, _ in [*positives, *negatives] if query not in split.by_text}
    if unknown:
        whose = "train.json does not" if judged else "their positives do not"
        work.findings.add(f"questions of the TSVs that {whose} have (left out)", len(unknown))
