"""The pairs of questions that train and evaluate a question-matching model (Section 2.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.retrieve.question_pairs import PairFile, QuestionPair, read_question_pairs
from builders.core.errors import InputError


def read_matching_pairs(
    files: Sequence[PairFile], dev_files: Sequence[PairFile], *, held_out_share: float, seed: int
) -> tuple[list[QuestionPair], list[QuestionPair]]:
    """Return (training pairs, dev pairs). Without ``dev_files``, a share of the training pairs is held out.

    Raises :class:`InputError` if the training pairs or the dev pairs have only one of the two labels.
    """
    training_pairs = read_question_pairs(files)
    if dev_files:
        dev_pairs = read_question_pairs(dev_files)
    else:
        training_pairs, dev_pairs = hold_out(training_pairs, held_out_share, seed)
    for pairs, purpose in ((training_pairs, "training"), (dev_pairs, "evaluation")):
        if len({pair.label for pair in pairs}) < 2:
            raise InputError(f"{len(pairs)} pairs for {purpose}; expected pairs with label 0 and pairs with label 1")
    return training_pairs, dev_pairs


def hold_out(pairs: Sequence[QuestionPair], share: float, seed: int) -> tuple[list[QuestionPair], list[QuestionPair]]:
    """Hold out a ``share`` of the pairs, drawn by the seed, and return (training pairs, held-out pairs).

    A training pair that shares a question with a held-out pair is dropped. Otherwise the model would be evaluated on
    questions from its training.
    """
    # 2, because the order of the training rows is drawn from the seed and 0 in the first epoch.
    order = np.random.default_rng([seed, 2]).permutation(len(pairs))
    drawn_numbers = sorted(order[: round(share * len(pairs))].tolist())
    held_out_pairs = [pairs[number] for number in drawn_numbers]
    held_out_questions = set()
    for pair in held_out_pairs:
        held_out_questions |= {pair.first, pair.second}
    training_pairs = [pair for pair in pairs if held_out_questions.isdisjoint((pair.first, pair.second))]
    return training_pairs, held_out_pairs


@dataclass
class DevPairs:
    """Pairs to evaluate a model on. ``pair_tokens``: tokens of a pair, to size batches that fit into memory."""

    pairs: list[QuestionPair]
    pair_tokens: int

    def __str__(self) -> str:
        return f"{len(self.pairs):,} pairs of questions"

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Return the AUC, and the accuracy at a probability of 0.5, the paper's threshold, as fractions.

        ``batch``: number of pairs that are scored at once if all of them have the longest length. A logit of 0 is the
        probability 0.5.

        The library's CrossEncoderClassificationEvaluator has no AUC, and tunes its threshold on the evaluated pairs.
        """
        from sklearn.metrics import accuracy_score, roc_auc_score

        from baselines.retrieve.encoder import CrossScorer

        scorer = CrossScorer(model, tokens=batch * self.pair_tokens)
        logits = scorer.scores([(pair.first, pair.second) for pair in self.pairs])
        labels = [pair.label for pair in self.pairs]
        return {"AUC": float(roc_auc_score(labels, logits)), "accuracy": float(accuracy_score(labels, logits > 0))}
