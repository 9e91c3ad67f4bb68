"""Program ``python -m baselines VERB``: search a release, train models on a release, and evaluate runs and models.

:func:`console` is the console script ``dureader-retrieval``, which also has the verbs of ``builders``."""

import sys

from builders.core.command import CONSOLE, main
from builders.core.exit_codes import end_soon

# Title -> verb -> target. A target is "module:function", or a module that lists the steps of its verb in STEPS.
GROUPS = {
    "evaluate any model": {"run": "baselines.retrieve.any_model:run_model"},
    "search with BM25": {"bm25": "baselines.bm25.search_bm25:search_bm25"},
    "train a model": {"mine": "baselines.train.mine:mine_negatives", "train": "baselines.train.train:train_model"},
    "search with a model": {
        "encode": "baselines.retrieve.encode:encode_texts",
        "search": "baselines.retrieve.search_vectors:search_vectors",
        "rerank": "baselines.retrieve.rerank:rerank_run",
        "fuse": "baselines.measure.fuse:fuse_runs",
        "match": "baselines.retrieve.match:match_questions",
    },
    "evaluate and inspect": {
        "evaluate": "baselines.measure.evaluate:evaluate_runs",
        "compare": "baselines.measure.compare:compare_runs",
        "show": "baselines.look.show:show_passages",
        "errors": "baselines.measure.error_analysis",
        "reproduce": "baselines.reproduce.reproduce_tables:reproduce_tables",
    },
    "share a model": {
        "convert": "baselines.hub.convert:convert_checkpoint",
        "push": "baselines.hub.push:push_model",
        "pull": "baselines.hub.pull:pull_model",
    },
}
VERBS: dict[str, str] = {}
for _group in GROUPS.values():
    VERBS |= _group


def console() -> int:
    """Run a verb of ``baselines`` or ``builders`` and return its exit code."""
    from builders.__main__ import GROUPS as BUILDERS  # only the console script needs this import

    groups = BUILDERS | GROUPS
    verbs: dict[str, str] = {}
    for group in groups.values():
        verbs |= group
    description = "Build releases of DuReader-retrieval, search them, train and evaluate."
    return end_soon(main(CONSOLE, description, verbs, groups=groups))


if __name__ == "__main__":
    exit_code = main("baselines", "Search a release, train models on it, and evaluate both.", VERBS, groups=GROUPS)
    sys.exit(end_soon(exit_code))
