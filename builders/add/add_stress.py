"""The step `add stress`: add sets of perturbed development and test questions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from builders.add.add_options import DrawSeed, ExtendedRelease
from builders.core.options import OneOf, Placeholder
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.names import STRESS_KINDS
from builders.store.release_options import ReleasePath

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_stress(
    release: ReleasePath,
    *,
    out: ExtendedRelease,
    kind: Annotated[Sequence[str], OneOf(STRESS_KINDS), Placeholder("KIND")] = STRESS_KINDS,
    split: Sequence[Literal["dev", "test"]] = ("dev", "test"),
    seed: DrawSeed | None = None,
) -> "WrittenRelease":
    """Add sets of perturbed questions: typos, scripts, pinyin.

    The main set's development and test questions are changed as people's typing changes them. Each kind is a set
    stress-KIND with the config stress-KIND-queries (_id, text, original_id). Passages and judgments are those of the
    originals. A question that a rule cannot change, or that would become another question, is counted and left out.
    Sets of an earlier call are replaced. docs/stress.md has the rules.

    traditional: traditional characters, by phrases (OpenCC). homophone: a frequent character of the same pronunciation.
    swap, drop, repeat: two neighbouring characters swapped, a character missing, a character twice. full-width:
    letters, digits and signs in full width. pinyin-word: one word in pinyin. traditional and full-width change the
    whole question. The other rules change one word, which is no name, number or negation. The result is a single
    character, or no word of jieba's dictionary.

    The same questions and seed give the same sets. A question's change does not depend on the other questions, unless
    they already have the changed text.

    Args:
        kind: kinds of perturbation
        split: splits of the questions, if the release has them
        seed: seed of the draw of the changed place (default: that of the published rules)

    Returns:
        The release. Its ``report`` has a row for each kind and split.

    Raises:
        InputError: the release has no such questions, a library is missing, or no rule can change a question.

    Examples:
        python -m builders add stress --release build/sample --out build/stress
        python -m builders add stress --release build/sample --kind swap drop --split dev --out build/stress
    """
    from builders.add.stress import build_stress, read_tested_queries
    from builders.store.written_release import open_written

    base, texts_by_split = read_tested_queries(release, split)
    # Repeated kinds count once, in the order of the pages.
    kinds = [name for name in STRESS_KINDS if name in kind]
    report = build_stress(base, texts_by_split, out, kinds=kinds, seed=seed)
    return open_written(out, report)
