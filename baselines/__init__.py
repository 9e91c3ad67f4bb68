"""Search a release and evaluate models from Python.

:mod:`baselines.api` has the front door: ``search``, ``evaluate``, ``compare`` and ``fuse``. Every verb of the command
line is a function, too, for example ``search_bm25``. Modules are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from builders.core.version import VERSION as __version__

if TYPE_CHECKING:
    from baselines.api import Release, compare, evaluate, fuse, open_release, read_run, search, write_run
    from baselines.bm25.search_bm25 import search_bm25
    from baselines.core.model_protocols import Encoder, QueryPassageEncoder, Reranker, Searcher
    from baselines.hub.convert import convert_checkpoint
    from baselines.hub.pull import pull_model
    from baselines.hub.push import push_model
    from baselines.look.show import show_passages
    from baselines.measure.compare import compare_runs
    from baselines.measure.error_steps import draw_errors, report_duplicates, report_holes, report_stages, tally_errors
    from baselines.measure.evaluate import evaluate_runs
    from baselines.measure.fuse import fuse_runs
    from baselines.measure.no_answer_step import report_no_answer
    from baselines.reproduce.reproduce_tables import reproduce_tables
    from baselines.retrieve.any_model import run_model
    from baselines.retrieve.encode import encode_texts
    from baselines.retrieve.match import match_questions
    from baselines.retrieve.rerank import rerank_run
    from baselines.retrieve.search_vectors import search_vectors
    from baselines.retrieve.searchers import make_searcher
    from baselines.train.mine import mine_negatives
    from baselines.train.train import train_model
    from builders.core.errors import InputError
    from builders.store.runs import Run

# Modules of the names that are no verbs.
_MODULES = {
    "Encoder": "baselines.core.model_protocols",
    "InputError": "builders.core.errors",
    "QueryPassageEncoder": "baselines.core.model_protocols",
    "Release": "baselines.api",
    "Reranker": "baselines.core.model_protocols",
    "Run": "builders.store.runs",
    "Searcher": "baselines.core.model_protocols",
    "compare": "baselines.api",
    "evaluate": "baselines.api",
    "fuse": "baselines.api",
    "make_searcher": "baselines.retrieve.searchers",
    "open_release": "baselines.api",
    "read_run": "baselines.api",
    "search": "baselines.api",
    "write_run": "baselines.api",
}
__all__ = [
    "Encoder",
    "InputError",
    "QueryPassageEncoder",
    "Release",
    "Reranker",
    "Run",
    "Searcher",
    "__version__",
    "compare",
    "compare_runs",
    "convert_checkpoint",
    "draw_errors",
    "encode_texts",
    "evaluate",
    "evaluate_runs",
    "fuse",
    "fuse_runs",
    "make_searcher",
    "match_questions",
    "mine_negatives",
    "open_release",
    "pull_model",
    "push_model",
    "read_run",
    "report_duplicates",
    "report_holes",
    "report_no_answer",
    "report_stages",
    "reproduce_tables",
    "rerank_run",
    "run_model",
    "search",
    "search_bm25",
    "search_vectors",
    "show_passages",
    "tally_errors",
    "train_model",
    "write_run",
]  # a test compares this list with the verbs


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__``. Python calls this function for names that the module does not have yet."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    # The name of a verb's function. Only the module of this verb is imported.
    from baselines.__main__ import VERBS
    from builders.core.verbs import load_named_function

    return load_named_function(name, VERBS)


def __dir__() -> list[str]:
    return __all__
