"""The step `add resttest`: add training and test sets by k-means."""

from typing import TYPE_CHECKING, Annotated

from builders.add.add_options import Embeddings, ExtendedRelease
from builders.core.options import Between, Placeholder
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, ReleasePath, Seed

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_resttest(
    release: ReleasePath,
    *,
    embeddings: Embeddings,
    out: ExtendedRelease,
    split: AnySplit = "dev",
    buckets: Annotated[int, Between(low=2), Placeholder("K")] = 5,
    seed: Seed = 0,
) -> "WrittenRelease":
    """Add training and test sets from k-means buckets of the queries.

    The method is ReSTTest of Zhan et al. (arXiv 2204.11447). k-means assigns training and test queries to K buckets by
    their vectors. The config of bucket N has three splits. `train` has the training queries of the other buckets,
    `extrapolation` the test queries of bucket N, and `interpolation` the other test queries. Average over the buckets.

    The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
    give the same sets on any number of threads. For every set, the command prints the mean cosine of a test query and
    its nearest training query, and the label overlap, which `check` also prints.

    Args:
        split: labelled split of the test queries
        buckets: buckets
        seed: seed of the draw

    Returns:
        The release. Its ``report`` has two rows for each bucket.

    Raises:
        InputError: a query has no vector, or a bucket has no training or no test queries.

    Examples:
        python -m builders add resttest --release build/release --embeddings build/vectors/train build/vectors/dev \\
          --out build/extrapolation
    """
    from builders.add.extrapolation_sets import write_bucket_sets
    from builders.core.results import Report
    from builders.store.judgments import overlap_report_table, overlap_table
    from builders.store.reader import open_release
    from builders.store.written_release import open_written

    rows = write_bucket_sets(
        open_release(release), out, embeddings=embeddings, test_split=split, bucket_count=buckets, seed=seed
    )
    report = Report(rows, overlap_table(rows), [overlap_report_table(rows)])
    return open_written(out, report)
