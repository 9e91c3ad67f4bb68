"""The step `add samples`: add nested samples of the collection."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from builders.add.add_options import ExtendedRelease, SetSize
from builders.core.errors import UsageError
from builders.core.options import Needs, Placeholder, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import ReleasePath, RunPath, Seed

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_samples(
    release: ReleasePath,
    *,
    out: ExtendedRelease,
    sizes: Sequence[SetSize] = (),
    extract: Annotated[Sequence[str], Placeholder("CONFIG"), Use.MAY_BE_EMPTY] | None = None,
    nano: bool = False,
    hard: Annotated[Sequence[RunPath], Needs("sizes", "nano")] = (),
    split: Annotated[Sequence[str], Placeholder("SPLIT"), Needs("sizes", "nano")] = ("dev",),
    seed: Annotated[Seed, Needs("sizes", "nano")] = 0,
) -> "WrittenRelease":
    """Add nested samples of the collection, for quick searches.

    For every size, the config sample-SIZE has the ids of SIZE passages: all positives of the queries of --split, and
    randomly drawn passages. --hard RUN... also adds sample-SIZE-hard: all positives, then the passages that the runs
    rank first for any query, then second, and so on. From the last rank, passages are drawn at random. If the runs have
    too few passages, random passages follow. Smaller samples are parts of larger samples of their kind (with or without
    -hard). Earlier samples are replaced. The same seed and runs give the same samples for any order of the passages.

    --extract CONFIG writes a small release with the sample's passages, and the queries whose positives every sample
    has. `bm25` and `search` of baselines do not need an extract: their option --sample selects a sample.

    --nano --extract writes a release of 200 drawn queries of --split and 10,000 passages: all judged passages of these
    queries, then the passages that the runs of --hard rank first, then second, and so on. mteb and other tools read
    this release, and a small model runs on it in minutes (docs/samples.md).

    Args:
        sizes: passages of a sample, for example 10K or 1M
        extract: write a release of this sample, for example sample-10K, or of the passages of --nano
        nano: draw 200 queries and 10,000 passages (with --extract)
        hard: also make samples of the best hits of these runs
        split: splits whose positives are in every sample
        seed: seed of the draw

    Returns:
        The release. Its ``report`` has the figures of the samples, or of the extract.

    Raises:
        UsageError: the options do not select exactly one of samples, an extract, and a nano release.
        InputError: a size is too small or too large, a run has no query of the split, or a passage is unknown.

    Examples:
        python -m builders add samples --release build/sample --sizes 100 --hard build/runs/bm25.run.gz \\
          --out build/samples
        python -m builders add samples --release DIR --sizes 10K 100K 1M --seed 0 --out DIR
        python -m builders add samples --release DIR --extract sample-100K-hard --out SMALL
        python -m builders add samples --release DIR --nano --hard bm25.dev.run.gz --extract --out NANO
    """
    from builders.add.samples import (
        extract_report,
        nano_report,
        samples_report,
        write_extract,
        write_nano,
        write_samples,
    )
    from builders.store.reader import open_release
    from builders.store.runs import read_run
    from builders.store.written_release import open_written

    # Exactly one of the three ways to call this step must fit.
    if sizes and extract is None and not nano:
        base_release = open_release(release)
        hard_runs = [read_run(run) for run in hard]
        rows = write_samples(
            base_release,
            out,
            sizes=sorted({*sizes}),
            splits=split,
            hard_runs=hard_runs,
            seed=seed,
        )
        return open_written(out, samples_report(rows))
    if nano and extract == () and not sizes:
        if len(split) != 1 or not hard:
            raise UsageError(
                "--nano draws queries of one --split and passages of runs; expected --hard RUN..., and one --split"
            )
        hard_runs = [read_run(run) for run in hard]
        figures = write_nano(open_release(release), out, split=split[0], hard_runs=hard_runs, seed=seed)
        return open_written(out, nano_report(figures, out))
    if extract and len(extract) == 1 and not sizes and not nano:
        figures = write_extract(open_release(release), extract[0], out)
        return open_written(out, extract_report(figures, out))
    raise UsageError("expected --sizes N..., --extract CONFIG, or --nano --extract")
