"""The step `add restrain`: add training sets that are similar or dissimilar to a small test set."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from builders.add.add_options import Embeddings, ExtendedRelease, SetSize
from builders.core.options import AtLeastOne, Placeholder
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import ReleasePath, Seed

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_restrain(
    release: ReleasePath,
    *,
    embeddings: Embeddings,
    out: ExtendedRelease,
    size: Sequence[SetSize],
    exclude: Annotated[AtLeastOne, Placeholder("K")] | None = None,
    split: Annotated[Sequence[str], Placeholder("SPLIT")] = ("dev",),
    seed: Seed = 0,
) -> "WrittenRelease":
    """Add training sets that are similar or dissimilar to a test set.

    The method is ReSTrain of Zhan et al. (arXiv 2204.11447; github.com/jingtaozhan/extrapolate-eval). It compares
    queries by the cosine of their vectors, which any model can compute. Sets have exactly SIZE queries. The published
    sets named 14k have 13,175 and 13,763 queries.

    restrain-SIZE-interpolation has SIZE training queries: the nearest training query of every test query, then the
    second nearest, and so on. From the last rank, the queries with the largest cosines are used.

    restrain-SIZE-extrapolation has SIZE other training queries. They are drawn after the K nearest training queries of
    every test query are removed. K is --exclude, or the K that allows the largest sets of both kinds. K does not depend
    on SIZE, so a smaller set is part of a larger set of its kind. Interpolation and extrapolation sets never share a
    query. Many test queries cause a warning, because almost every training query is then similar to some test query.

    The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
    give the same sets on any number of threads. For every set, the command prints the mean cosine of a test query and
    its nearest training query, and the label overlap, which `check` also prints.

    Args:
        size: training queries of a set, for example 14K
        exclude: extrapolation excludes the K nearest queries of each test query (default: for the largest sets)
        split: test queries, labelled or not
        seed: seed of the draw

    Returns:
        The release. Its ``report`` has a row for each set.

    Raises:
        InputError: a query has no vector, or a size is too large.

    Examples:
        python -m baselines encode --release build/release --model M --queries --split train --out build/vectors/train
        python -m baselines encode --release build/release --model M --queries --split dev --out build/vectors/dev
        python -m builders add restrain --release build/release --embeddings build/vectors/train build/vectors/dev \\
          --size 14K --out build/extrapolation
    """
    from builders.add.extrapolation_sets import write_restrain_sets
    from builders.core.results import Report
    from builders.store.judgments import overlap_report_table, overlap_table
    from builders.store.reader import open_release
    from builders.store.written_release import open_written

    rows = write_restrain_sets(
        open_release(release), out, embeddings=embeddings, sizes=size, exclude=exclude, test_splits=split, seed=seed
    )
    report = Report(rows, overlap_table(rows), [overlap_report_table(rows)])
    return open_written(out, report)
