"""Names in a release that options offer as choices. This module imports no library, so that ``--help`` is quick.

:mod:`builders.store.layout` declares the columns of these sets, splits and configs. The names of the sets are generated
from these declarations.
"""

SAMPLE_RELEASE = "build/sample"  # where the examples build the embedded sample
SPLITS = ("train", "dev", "test")
TESTED_SPLITS = ("dev", "test")  # whose questions must not be in the training data (Section 2.3)
# Generated from builders/store/layout.py by `python -m builders.store.loader_tables`.
SET_NAMES = (
    "main",
    "cmedqa",
    "ccovid",
    "crosslingual",
    "stress-traditional",
    "stress-homophone",
    "stress-swap",
    "stress-drop",
    "stress-repeat",
    "stress-full-width",
    "stress-pinyin-word",
)
STRESS_KINDS = ("traditional", "homophone", "swap", "drop", "repeat", "full-width", "pinyin-word")
# End of the generated lines.
# Configs with a part of the questions of the set main (Section 2.3, Table 6).
QUESTION_CONFIGS = ("duplicated", "others", "train-similar")
QRELS_BEFORE = "qrels-before"  # judgments before people corrected them (Figure 2)
QUESTION_PROPERTIES = ("question_type", "fact_or_opinion", "source", "query_length")  # --by
