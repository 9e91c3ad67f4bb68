"""The step `add answers`: add people's answers and the types of the questions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builders.add.add_options import ExtendedRelease
from builders.core.verbs import TABLE_FORMATS, verb
from builders.core.words import SEGMENTERS
from builders.store.release_options import ReleasePath
from builders.text.span_options import THRESHOLD, RawPath, Segmenter, SpanOptions, SpanThreshold, Unit

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_answers(
    raw: Sequence[RawPath],
    *,
    release: ReleasePath,
    out: ExtendedRelease,
    unit: Unit = "word",
    segmenter: Segmenter = SEGMENTERS[0],
    threshold: SpanThreshold = THRESHOLD,
) -> "WrittenRelease":
    """Add answers and the types of the questions from raw DuReader.

    The config `answers` has a row for each query whose text is the question of a raw row. The row has the answers, the
    type of the question (ENTITY, DESCRIPTION or YES_NO; FACT or OPINION), the service where the question was asked
    (search or zhidao, from the file's name), and the judged passages that contain each answer. A passage contains an
    answer if one of the passage's spans reaches --threshold of span-F1 with the answer (Algorithm 1).

    The verb `release` also writes this config. `add answers` adds the config to any release, for example one of the
    official archives. A raw file may belong to any split. Earlier answers of the release are replaced.

    Args:
        raw: raw rows of DuReader 2.0
        release: release with the queries

    Returns:
        The release. Its ``report`` counts the answers of each split.

    Raises:
        InputError: a row is wrong, or no row asks a query of the release.

    Examples:
        python -m builders add answers --raw builders/sample --release build/sample --out build/with-answers
    """
    from builders.add.raw_answers import write_answers
    from builders.core.results import Report
    from builders.store.reader import open_release
    from builders.store.stored_answers import answer_counts_table, answers_text
    from builders.store.written_release import open_written

    options = SpanOptions(unit, threshold, segmenter=segmenter)
    stats = write_answers(open_release(release), raw, out, options)
    text_lines = []
    for split, counts in stats["matched"].items():
        text_lines.append(f"{split}: {counts['matched']:,} of {counts['queries']:,} queries have a raw row")
    text_lines.append(answers_text(stats["answers"]))
    text_lines.append(f"release: {out}")
    report = Report(stats, "\n".join(text_lines), [answer_counts_table(stats["answers"])])
    return open_written(out, report)
