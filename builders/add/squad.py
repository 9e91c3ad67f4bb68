"""The verb `squad`: build a release from reading comprehension in SQuAD's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from builders.add.add_options import DrawSeed
from builders.core.options import AtLeastOne, Needs, Placeholder
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import NewRelease
from builders.text.span_options import MIN_CHARS

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def build_squad(
    *,
    out: NewRelease,
    train: Annotated[Sequence[Path], Placeholder("FILE")] = (),
    dev: Annotated[Sequence[Path], Placeholder("FILE")] = (),
    test: Annotated[Sequence[Path], Placeholder("FILE")] = (),
    passages: Annotated[Sequence[Path], Placeholder("FILE")] = (),
    cut: Annotated[Literal["head", "all", "whole"], Needs("passages")] = "head",
    min_chars: Annotated[AtLeastOne, Placeholder("N"), Needs("passages")] = MIN_CHARS,
    dev_size: Annotated[AtLeastOne, Placeholder("N"), Needs("dev")] | None = None,
    seed: Annotated[DrawSeed, Needs("dev_size")] = 0,
) -> "WrittenRelease":
    """Build a release from reading comprehension in SQuAD's format.

    Each question of a reading comprehension dataset becomes a query, and its paragraph becomes the positive passage.
    The result is real Chinese retrieval data, small enough to train on one machine. The input is JSON, plain, .gz or
    .zip: {"data": [{"paragraphs": [{"context", "qas": [{"question"}]}]}]}. SQuAD 1.1 and 2.0, CMRC 2018 (the files of
    its folder squad-style-data), DRCD and XQuAD have this format. Paragraphs are not cut. Equal questions become one
    query with all their paragraphs. A query in several splits stays in the first of test, dev, train. Questions marked
    is_impossible, and questions with an empty list of answers, are skipped and counted.

    --passages adds distractors from text files with one article a line. Check the licences of the articles. Sentences
    of an article are joined until a passage has --min-chars characters (Section 2.2.2). --cut selects the passages to
    add.

    Args:
        train: questions of train; paragraphs of all splits join the collection
        dev: questions of dev
        test: questions of test
        passages: distractors, one article a line
        cut: first passage, all passages, or uncut article
        min_chars: join sentences until a passage has N characters
        dev_size: draw N dev questions at random (default: all)

    Returns:
        The release. Its ``report`` has the statistics, for example Table 3.

    Raises:
        InputError: a file is not UTF-8 or not in SQuAD's format, or no split has a question.

    Examples:
        python -m builders squad --train cmrc/train.json.gz --dev cmrc/dev.json.gz --passages news/*.gz --out build/cmrc
    """
    from builders.add.squad_files import write_squad_release
    from builders.core.results import Report
    from builders.store.table3 import table3_tables, table3_text
    from builders.store.written_release import open_written

    stats = write_squad_release(
        out,
        question_paths={"train": train, "dev": dev, "test": test},
        distractor_paths=passages,
        cut=cut,
        min_chars=min_chars,
        dev_size=dev_size,
        seed=seed,
    )
    report = Report(stats, f"{table3_text(stats)}\nrelease: {out}", table3_tables(stats))
    return open_written(out, report)
