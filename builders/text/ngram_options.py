"""Options of verbs that compare texts. This module imports no slow library, so that ``--help`` is quick."""

from typing import Annotated

from builders.core.options import AtLeastOne, Between, Help, Placeholder

NGRAM = 2  # characters of an n-gram
SHARE = 0.8  # threshold of the Jaccard similarity
# Ways in which two texts can match, the strongest first.
HOW = ("exact", "normalised", "n-gram", "model")

NgramLength = Annotated[AtLeastOne, Placeholder("N"), Help("characters of an n-gram")]
LowestJaccard = Annotated[
    float,
    Between(low=0.3, high=1),
    Placeholder("X"),
    Help("lowest Jaccard similarity of matching texts, from 0.3 to 1"),
]
