"""The step `add ccovid`: add the news out-of-domain set."""

from typing import TYPE_CHECKING

from builders.add.add_options import DrawSeed, Encoding, SourcePaths, TestSize
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import NewRelease, ReleasePath

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease

TEST_QUERIES = 949  # Section 2.4


@verb(formats=TABLE_FORMATS)
def add_ccovid(
    source: SourcePaths,
    *,
    out: NewRelease,
    release: ReleasePath | None = None,
    test_size: TestSize = TEST_QUERIES,
    seed: DrawSeed = 0,
    encoding: Encoding = "auto",
) -> "WrittenRelease":
    """Add cCOVID-News, the news out-of-domain set (Section 2.4).

    The source is DataFountain competition 424, and Table 3 has the figures of the set. --release adds the set to a copy
    of a release. NCPPolicies_context_*.csv has the documents (docid, text). Each whole document is one passage.
    NCPPolicies_train_*.csv has the questions (id, docid, question, answer). Files are tab-separated, in UTF-8 or
    GB18030, plain, .gz or .zip. JSON lines with docid, context and an optional question also work. The kind of a file
    is detected from its header. The competition's test questions have no document and are not used.

    949 questions are drawn at random for test, as in the paper. The other 4,000 questions of the competition become
    train, for fine-tuning. The paper's own draw is not published. The seed of the new draw is in the manifest.

    Args:
        release: release to copy into --out (default: no release)
        test_size: draw N test queries at random; the others go to train

    Returns:
        The release. Its ``report`` has the figures of the set.

    Raises:
        InputError: a row is wrong, or a named file is not one of the competition's.

    Examples:
        python -m builders add ccovid --source NCPPolicies --out build/ccovid
        python -m builders add ccovid --source NCPPolicies --release build/sample --out build/with-ccovid --seed 7
    """
    from builders.add.ccovid import read_ccovid
    from builders.add.collection import write_release

    collection, source_files = read_ccovid(source, encoding)
    return write_release(
        collection, source_files, out=out, base=release, test_size=test_size, seed=seed, encoding=encoding
    )
