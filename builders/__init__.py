"""Build releases from Python: every verb of the command line is a function. Modules are imported on first use.

Wrong input raises :class:`InputError`, and so does a wrong option.
"""

from typing import TYPE_CHECKING, Any

from builders.core.version import VERSION as __version__

if TYPE_CHECKING:
    from builders.add.add_answers import add_answers
    from builders.add.add_ccovid import add_ccovid
    from builders.add.add_cmedqa import add_cmedqa
    from builders.add.add_crosslingual import add_crosslingual
    from builders.add.add_restrain import add_restrain
    from builders.add.add_resttest import add_resttest
    from builders.add.add_samples import add_samples
    from builders.add.add_stress import add_stress
    from builders.add.squad import build_squad
    from builders.annotate.judge_steps import compare_with_people, prefill_round
    from builders.annotate.pool_steps import pool_passages, relabel_negatives
    from builders.annotate.round_steps import (
        check_round,
        collect_disagreements,
        draw_reviews,
        export_round,
        import_judgments,
        merge_round,
    )
    from builders.annotate.translation_steps import manage_translations, translate_queries
    from builders.check.check_release import check_release
    from builders.core.errors import InputError
    from builders.export.export_release import export_release
    from builders.official.build_official import build_official
    from builders.publish.publish_release import publish_release
    from builders.release.build_release import build_release
    from builders.similar.find_similar import find_similar

__all__ = [
    "InputError",
    "__version__",
    "add_answers",
    "add_ccovid",
    "add_cmedqa",
    "add_crosslingual",
    "add_restrain",
    "add_resttest",
    "add_samples",
    "add_stress",
    "build_official",
    "build_release",
    "build_squad",
    "check_release",
    "check_round",
    "collect_disagreements",
    "compare_with_people",
    "draw_reviews",
    "export_release",
    "export_round",
    "find_similar",
    "import_judgments",
    "manage_translations",
    "merge_round",
    "pool_passages",
    "prefill_round",
    "publish_release",
    "relabel_negatives",
    "translate_queries",
]  # a test compares this list with the verbs


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__``. Python calls this function for names that the module does not have yet."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "InputError":
        from builders.core.errors import InputError

        return InputError
    from builders.__main__ import VERBS
    from builders.core.verbs import load_named_function

    return load_named_function(name, VERBS)


def __dir__() -> list[str]:
    return __all__
