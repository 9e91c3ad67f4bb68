"""The step `add crosslingual`: add the cross-lingual set."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from builders.add.add_options import Encoding
from builders.core.options import Placeholder
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import NewRelease, ReleasePath

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_crosslingual(
    source: Annotated[Sequence[Path], Placeholder("TABLE")],
    *,
    release: ReleasePath,
    out: NewRelease,
    encoding: Encoding = "auto",
) -> "WrittenRelease":
    """Add the cross-lingual set: English queries (Section 2.5).

    Table 3 has the figures of the set. Sources are a release with the Chinese queries, and tables of translations (CSV
    or TSV). A table has a column id or zh, and a column english. A table without a header has two columns: the query's
    id or Chinese text, and the English text. An English query has the passages, judgments and split of its Chinese
    query. The new configs are crosslingual-queries (_id, text, zh_id) and crosslingual. crosslingual has the rows of
    train, dev and test with the English query in `query` and the Chinese query in `query_zh`.

    The id of an English query is the MD5 of its text. If several Chinese queries of a split have the same translation,
    each query has its own row, because its passages differ. From the second row on, the id is the MD5 of the English
    text, a line feed and zh_id, so every id is unique in its split. A Chinese query with several translations has
    several rows. `annotate translations` organises translation by hand, with the paper's quality control (A.3).

    Args:
        source: tables of translations
        release: release with the Chinese queries

    Returns:
        The release. Its ``report`` has the figures of the set.

    Raises:
        InputError: a table has other columns, a row names two queries, or no row translates a query of the release.

    Examples:
        python -m builders add crosslingual --source translations.tsv --release build/sample --out build/with-english
    """
    from builders.add.crosslingual import build_crosslingual, crosslingual_report, open_translations
    from builders.sources.source_tables import find_tables
    from builders.store.written_release import open_written

    base, query_splits, translations = open_translations(release, source, encoding)
    options = {"action": "build", "encoding": encoding}
    stats = build_crosslingual(translations, query_splits, base, out, options, find_tables(source))
    return open_written(out, crosslingual_report(stats, out))
