"""The step `add cmedqa`: add the medical out-of-domain set."""

from typing import TYPE_CHECKING, Annotated

from builders.add.add_options import DrawSeed, Encoding, SourcePaths, TestSize
from builders.core.options import Needs
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import NewRelease, ReleasePath

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease


@verb(formats=TABLE_FORMATS)
def add_cmedqa(
    source: SourcePaths,
    *,
    out: NewRelease,
    release: ReleasePath | None = None,
    test_size: TestSize | None = None,
    seed: Annotated[DrawSeed, Needs("test_size")] = 0,
    encoding: Encoding = "auto",
) -> "WrittenRelease":
    """Add cMedQA, the medical out-of-domain set (Section 2.4).

    The source is cMedQA2, and Table 3 has the figures of the set. --release adds the set to a copy of a release.
    question.csv (question_id,content) and answer.csv (ans_id,question_id,content) have the texts. The candidates of dev
    and test have the columns question_id,ans_id,cnt,label, where label 1 is positive. The candidates of train have
    these columns, or question_id,pos_ans_id,neg_ans_id. The kind of a file is detected from its header. A candidates
    file also needs train, dev or test in its name. Files are UTF-8 or GB18030, plain, .gz or .zip.

    The corpus has all answers. cMedQA2's dev candidates become test, and its test candidates become dev, because the
    sizes match: the paper's test split has 3,999 queries and 7,527 positives, and cMedQA2's dev candidates have 4,000
    questions and 7,527 positives. Equal questions are merged. Questions without candidates go to train, and answer.csv
    has their positives. cMedQA2 is for non-commercial research only.

    Args:
        release: release to copy into --out (default: no release)
        test_size: draw N test queries at random; the others go to train (default: all)

    Returns:
        The release. Its ``report`` has the figures of the set.

    Raises:
        InputError: a row is wrong, the test candidates are missing, or a named file is not one of cMedQA's.

    Examples:
        python -m builders add cmedqa --source cMedQA2 --out build/cmedqa
        python -m builders add cmedqa --source *.zip --release build/sample --out build/with-cmedqa
    """
    from builders.add.cmedqa import read_cmedqa
    from builders.add.collection import write_release

    collection, source_files = read_cmedqa(source, encoding)
    return write_release(
        collection, source_files, out=out, base=release, test_size=test_size, seed=seed, encoding=encoding
    )
