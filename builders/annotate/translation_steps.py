"""The steps `translate` and `translations` of `annotate`: English queries for the cross-lingual set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from builders.annotate.annotate_options import PACKAGE_SIZE, REVIEW_ITEMS, ItemCount, Parallel, WrittenFiles
from builders.core.errors import UsageError
from builders.core.options import Excludes, Needs, Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import MainSplit, ReleasePath

Tables = Sequence[Annotated[Path, Placeholder("TABLE")]]


@verb(resumes=True)
def translate_queries(
    release: ReleasePath,
    *,
    split: Sequence[MainSplit] = ("dev",),
    model: Annotated[str, Placeholder("NAME")],
    local: bool = False,
    parallel: Parallel = 4,
    out: Annotated[Path, Placeholder("OUT")],
) -> WrittenFiles:
    """Translate queries into English by a model (Section 2.5).

    --model names a model at the endpoint in OPENAI_BASE_URL, or with --local a sequence-to-sequence model of
    transformers, as a folder or a name on a hub (for example Helsinki-NLP/opus-mt-zh-en). Any server with OpenAI's chat
    API works. The queries are sent to this endpoint. OPENAI_API_KEY has the key, if the server needs a key.

    The output is a table (TSV) with the columns id, zh, machine_translation and model. Every answer is saved as it
    comes, so a killed command asks again only about the queries in flight. Queries that OUT already has from the same
    model are not asked again.

    In the paper, people corrected machine translations. `annotate translations export --translations OUT` puts the
    table into packages for people, with the review and acceptance of A.3. `add crosslingual --source OUT` makes the
    cross-lingual set without people. The set's figures then have the number of machine translations.

    Args:
        release: release with the Chinese queries
        split: splits to translate
        model: model at the endpoint, or with --local a folder or hub name
        local: run the model on this machine, with transformers
        out: table to write, .tsv

    Returns:
        The path of the table, and the numbers of queries and of translated queries.

    Raises:
        InputError: the release lacks a split, the table is by another model, or the model fails.

    Examples:
        python -m builders annotate translate --release build/sample --split dev --model NAME --out build/machine.tsv
        python -m builders annotate translations export --release build/sample --split dev \\
            --translations build/machine.tsv --out build/packages.tsv
    """
    from builders.annotate.translate import translate_splits
    from builders.store.reader import open_release

    release_path = open_release(release).path
    query_count, translated_count = translate_splits(
        out, release_path, splits=split, model=model, local=local, parallel=parallel
    )
    text = f"{translated_count:,} of {query_count:,} queries translated by {model} (a model): {out}"
    return WrittenFiles((out,), text, {"queries": query_count, "translated": translated_count})


@verb(formats=TABLE_FORMATS)
def manage_translations(
    action: Annotated[Literal["export", "review", "import"], Use.POSITIONAL, Placeholder("action")],
    release: ReleasePath,
    *,
    source: Annotated[Tables, Excludes("action=export")] = (),
    out: Annotated[Path, Placeholder("OUT")],
    split: Annotated[Sequence[MainSplit], Needs("action=export")] = (),
    package_size: Annotated[ItemCount, Needs("action=export")] = PACKAGE_SIZE,
    translations: Annotated[Tables, Needs("action=export")] = (),
    reviews: Annotated[Sequence[Path], Placeholder("SHEET"), Needs("action=import")] = (),
    pairs: Annotated[ItemCount, Excludes("action=export")] = REVIEW_ITEMS,
) -> WrittenFiles | Report:
    """Translate queries by hand, for the cross-lingual set.

    `export` writes packages of 1,000 queries into one tab-separated file with the columns package, id, zh,
    machine_translation and english. Translators fill in or correct `english`. `review` draws 100 random queries of each
    package for each of two reviewers. A reviewer's sheet has the columns package, id, zh, english and correct.
    Reviewers fill in `correct` with 1 or 0. `import` computes each package's accuracy, the mean over its reviewers. If
    every accuracy is at least 93 %, `import` builds the set as `add crosslingual` does. Otherwise, `import` prints the
    accuracies and exits with 1.

    Args:
        action: write packages, draw sheets for reviewers, or build the set
        release: release with the Chinese queries
        source: tables with packages (review, import)
        out: table or release to write
        split: splits to translate (export; default: all)
        package_size: queries of a package (export)
        translations: machine translations to correct (export)
        reviews: filled-in sheets, one per reviewer (import)
        pairs: queries of a package per reviewer (review, import)

    Returns:
        The paths of the written tables (export, review), or the figures of the packages and the set (import).

    Raises:
        InputError: a table lacks a column or a translation, a sheet does not fit the packages, or a table to write
            exists with another content, which people may have filled in.

    Examples:
        python -m builders annotate translations export --release build/sample --split dev test --out build/packages.tsv
        python -m builders annotate translations review --source build/packages.tsv --release build/sample \\
          --out build/review.tsv
        python -m builders annotate translations import --source build/packages.tsv --release build/sample \\
          --reviews build/review.1.tsv build/review.2.tsv --out build/with-english
    """
    from builders.annotate.translations import import_translations, write_review_sheets, write_translation_packages
    from builders.core.paths import check_outputs
    from builders.store.reader import open_release

    if action != "export" and not source:
        raise UsageError(f"{action} needs --source")
    if action == "import" and not reviews:
        raise UsageError("import needs --reviews")
    release_path = open_release(release).path
    if action != "import":
        check_outputs({"--out": out}, [*source, *translations, release_path])
    if action == "import":
        return import_translations(out, release_path, tables=source, reviews=reviews, queries_per_package=pairs)
    if action == "review":
        sheet_paths = write_review_sheets(out, release_path, tables=source, queries_per_package=pairs)
        return WrittenFiles(tuple(sheet_paths), "\n".join(map(str, sheet_paths)))
    query_count, package_count = write_translation_packages(
        out, release_path, splits=split, package_size=package_size, machine_tables=translations
    )
    text = f"{query_count:,} queries in {package_count:,} packages: {out}"
    return WrittenFiles((out,), text, {"queries": query_count, "packages": package_count})
