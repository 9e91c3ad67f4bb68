"""The pairs of questions that train and evaluate a question-matching model (Section 2.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.retrieve.question_pairs import PairFile, QuestionPair, read_question_pairs
from builders.core.errors import InputError


def train_and_dev(
    files: Sequence[PairFile], dev_files: Sequence[PairFile], held_out: float, seed: int
) -> tuple[list[QuestionPair], list[QuestionPair]]:
    """Return the training pairs and the dev pairs. Without ``dev_files``, a part of the training pairs is held out.

    Raises :class:`InputError` if the training pairs or the dev pairs have only one of the two labels.
    """
    pairs = read_question_pairs(files)
    train, dev = (pairs, read_question_pairs(dev_files)) if dev_files else hold_out(pairs, held_out, seed)
    for pairs, use in ((train, "training"), (dev, "evaluation")):
        if len({pair.label for pair in pairs}) < 2:
            raise InputError(f"{len(pairs)} pairs for {use}; expected pairs with label 0 and pairs with label 1")
    return train, dev


def hold_out(pairs: Sequence[QuestionPair], share: float, seed: int) -> tuple[list[QuestionPair], list[QuestionPair]]:
    """Hold out a ``share`` of the pairs, drawn by the seed, and return (training pairs, held-out pairs).

    A training pair that shares a question with a held-out pair is dropped. Otherwise the model would be evaluated on
    questions from its training.
    """
    drawn = set(np.random.default_rng([seed, 2]).permutation(len(pairs))[: round(share * len(pairs))].tolist())
    apart = {text for number in drawn for text in pairs[number][:2]}
    rest = [pair for pair in pairs if apart.isdisjoint(pair[:2])]
    return rest, [pairs[number] for number in sorted(drawn)]


@dataclass
class Measured:
    """Pairs to evaluate a model on. ``length``: tokens of a pair, to size batches that fit into memory."""

    pairs: list[QuestionPair]
    length: int

    def __str__(self) -> str:
        return f"{len(self.pairs):,} pairs of questions"

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Return the AUC, and the accuracy at a probability of 0.5, the paper's threshold.

        The library's CrossEncoderClassificationEvaluator has no AUC, and tunes its threshold on the evaluated pairs.
        """
        from sklearn.metrics import accuracy_score, roc_auc_score

        from baselines.retrieve.encoder import CrossScorer

        scorer = CrossScorer(model, tokens=batch * self.length)
        logits = scorer.scores([(pair.first, pair.second) for pair in self.pairs])
        labels = [pair.label for pair in self.pairs]
        return {"AUC": float(roc_auc_score(labels, logits)), "accuracy": float(accuracy_score(labels, logits > 0))}
