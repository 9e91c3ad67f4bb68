"""The verb `check`: test a release."""

import json
from pathlib import Path
from typing import Annotated

from builders.check.check_options import AcceptedTests
from builders.core.errors import log
from builders.core.options import Placeholder
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import ReleasePath


@verb(formats=TABLE_FORMATS)
def check_release(
    release: ReleasePath,
    *,
    figures: Annotated[Path, Placeholder("DIR")] | None = None,
    accept: AcceptedTests = (),
) -> Report:
    """Test a release, and compare its counts with the paper's Table 3.

    The exit code is 1 if a test finds an error. Errors are, for example, files that differ from the manifest, ids that
    are not the MD5 of their text, duplicate texts, queries without a positive passage, and joined rows or statistics
    that disagree with the other files. Warnings are, for example, control characters, very long texts, queries in two
    splits, and sizes that differ from the paper's Table 3. For a release from raw data, different sizes are not a
    warning. Every shard is read. Testing 8 million passages needs about 1 GB of memory and 1 GB of disk in TMPDIR.

    After the tests, the rows are counted without stats.json. The output has Table 3, the lengths of passages, and the
    number of test queries that share a positive passage with a training query. --figures draws histograms of the
    passage lengths and of the positives per query (passage-length.png, positives-per-query.png), and writes stats.json.

    Args:
        release: release directory to test
        figures: write histograms (PNG) and the counts (stats.json) into DIR

    Returns:
        The findings and the counts. The first table has a row for each test.

    Raises:
        InputError: the directory is not a release, or a file cannot be written.

    Examples:
        python -m builders check --release build/sample --figures build/sample-figures
        python -m builders check --release dureader_retrieval --format json --accept ids-not-md5
    """
    from builders.check.histograms import draw_histograms
    from builders.check.release_report import run_check
    from builders.check.report_tables import tables_of
    from builders.core.paths import check_outputs
    from builders.core.write_files import write_bytes, write_text
    from builders.store.reader import open_release

    opened_release = open_release(release)
    if figures:  # a folder that cannot be written is an error before the tests, which take minutes
        check_outputs({"--figures": figures / "stats.json"}, [opened_release.path])
    outcome = run_check(opened_release, frozenset(accept))
    if figures:
        histograms = draw_histograms(outcome.figures.lengths, outcome.figures.positives)
        for name, image in histograms.items():
            write_bytes(figures / name, image)
        stats_text = json.dumps(outcome.figures.stats, ensure_ascii=False, indent=1)
        write_text(figures / "stats.json", stats_text + "\n")
        log.info("wrote %s", figures)
    return Report(
        value=outcome.as_json(),
        text=outcome.text,
        tables=lambda: tables_of(outcome),
        failed=bool(outcome.errors),
    )
