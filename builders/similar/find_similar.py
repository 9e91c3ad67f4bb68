"""The verb `similar`: find training questions that are similar to questions of dev and test."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from builders.core.errors import UsageError, log
from builders.core.options import AtLeastOne, Excludes, Needs, OneOf, Placeholder, Share
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.names import TESTED_SPLITS
from builders.store.release_options import ReleasePath, RunPath
from builders.text.ngram_options import HOW, NGRAM, SHARE, LowestJaccard, NgramLength

if TYPE_CHECKING:
    from builders.core.results import Report
    from builders.store.reader import Release
    from builders.text.likeness import LikenessRule


@verb(formats=TABLE_FORMATS)
def find_similar(
    release: ReleasePath,
    *,
    out: Annotated[Path, Placeholder("OUT")] | None = None,
    list: Annotated[Path, Placeholder("FILE"), Excludes("against")] | None = None,
    split: Sequence[Annotated[str, OneOf(TESTED_SPLITS)]] = (),
    by: Sequence[Annotated[str, OneOf(HOW)]] = HOW,
    scores: Annotated[Sequence[RunPath], Needs("by=model")] = (),
    threshold: Annotated[Share, Placeholder("X"), Needs("scores")] | None = None,
    ngram: Annotated[NgramLength, Needs("by=n-gram")] = NGRAM,
    jaccard: Annotated[LowestJaccard, Needs("by=n-gram")] = SHARE,
    against: Annotated[Sequence[Path], Placeholder("FILE")] = (),
    question: Annotated[Sequence[str], Placeholder("NAME"), Needs("against")] = (),
    positive: Annotated[Sequence[str], Placeholder("NAME"), Needs("against")] = (),
    questions: Annotated[Path, Placeholder("DIR"), Needs("against")] | None = None,
    workers: Annotated[AtLeastOne, Placeholder("N"), Needs("against")] | None = None,
    format: Annotated[Literal["text", "json", "markdown", "csv"], Placeholder("FORMAT")] = "text",
) -> "Release | Report | Path":
    """Remove or report training questions similar to dev and test.

    If a training question means the same as a dev or test question, training reveals the answer (Section 2.3). A
    training question is removed if it matches a dev or test question in one of these ways, the strongest first:

      exact       The texts are equal.
      normalised  The letters and digits are equal, ignoring punctuation, blanks, width and case.
      n-gram      The Jaccard similarity of character n-grams is at least --jaccard, and no short text adds new letters.
      model       The score of `python -m baselines match` is above --threshold. The paper uses only --by model.

    The questions are removed from every config with training questions: queries, qrels, qrels-before, train, answers,
    crosslingual and crosslingual-queries. Sets of `add restrain` and `add resttest` are left out. train-similar has the
    removed questions with their passages. duplicated has the dev and test questions that are similar to a removed
    question. others has the remaining dev and test questions. To remove further questions, run the verb on its own
    output with other options.

    --threshold depends on the model: 0.5 for the probabilities of a question-matching model (Section 2.3), or the
    result of `python -m baselines match --calibrate`. At 0.5, the cosines of an encoder such as e5 match nearly every
    question.

    --against FILE removes no questions. It searches other training pairs for the questions and positive passages of dev
    and test. FILE is JSON lines, plain or gzipped, or Parquet. The report counts the matches of each file and of all
    files by the way to match. It also counts questions that share a row with one of their positive passages, and shows
    examples. --questions DIR writes the questions of the pairs, of dev and of test as a release for `python -m
    baselines match`.

    Args:
        release: release directory to read
        out: new release, not --release; report of --against (default: stdout)
        list: write every similar pair to FILE, as JSON lines
        split: splits to compare with (default: dev test)
        by: ways to match; model needs --scores
        scores: scores of `baselines match`
        threshold: questions with a score above X are similar (required with --scores)
        against: report on these training pairs
        question: keys or columns with questions (default: usual names)
        positive: keys or columns with positive passages (default: usual names)
        questions: only write the questions of FILE as a release for `match`
        workers: worker processes (default: all cores, or 1 for few pairs)
        format: output format

    Returns:
        The new release, whose ``report`` counts the removed questions. With ``against``, the report of the pairs, or
        the path of the file with the report. With ``questions``, the release with the questions.

    Raises:
        UsageError: options exclude or need each other.
        InputError: a file is wrong, a score names an unknown question, or no training question would be left.

    Examples:
        python -m builders similar --release build/release --out build/similar
        python -m baselines match --release build/release --split dev test --model build/models/matching \\
          --out build/runs/similar.run
        python -m builders similar --release build/release --scores build/runs/similar.run --threshold 0.5 \\
          --out build/similar
        python -m builders similar --release build/release --against bge-train.jsonl.gz other/*.parquet
    """
    if not against and out is None:
        raise UsageError("expected --out or --against")
    if questions is not None and out is not None:
        raise UsageError("--questions and --out exclude each other")
    if by == ("model",) and not scores:
        raise UsageError("--by model needs --scores")
    if scores and "model" in by and threshold is None:
        raise UsageError("--scores needs --threshold: 0.5 for probabilities, or the result of `match --calibrate`")
    release_path = release if isinstance(release, Path) else release.path
    for option, output_path in (("--out", out), ("--questions", questions)):
        # The verb removes questions, so the release could not be restored from its own output.
        if output_path is not None and os.path.realpath(output_path) == os.path.realpath(release_path):
            raise UsageError(f"{option} and --release name the same directory {output_path}; expected a new directory")

    from builders.core.paths import check_outputs
    from builders.core.write_files import write_text
    from builders.similar.contamination import compare_pairs, contamination_report, write_pair_questions
    from builders.similar.pairs import names_of
    from builders.similar.remove import removal_report, remove_similar
    from builders.store.draft import check_release_output, expect_apart
    from builders.store.reader import open_release
    from builders.store.runs import read_run
    from builders.store.written_release import open_written
    from builders.text.likeness import LikenessRule, read_tested

    expect_apart(release_path, {"--out": out, "--questions": questions, "--list": list})
    if out is not None and list is not None and not against:
        expect_apart(out, {"--list": list})
    rule = LikenessRule(by, ngram, jaccard, [read_run(run) for run in scores], threshold)

    # Remove the similar questions.
    if out is not None and not against:
        check_release_output(out)
        check_outputs({"--list": list}, scores)
        counts = remove_similar(read_tested(open_release(release), rule, split), out, list)
        warn_without_scores(rule)
        return open_written(out, removal_report(counts, out))

    # Only search other training pairs.
    if out is not None and not questions:
        check_outputs({"--out": out}, against)
    tested_questions = read_tested(open_release(release), rule, split)
    column_names = names_of(question, positive)
    if questions:
        write_pair_questions(tested_questions, against, column_names, questions)
        return open_release(questions)
    report = contamination_report(compare_pairs(tested_questions, against, column_names, workers))
    warn_without_scores(rule)
    if out is None:
        return report
    write_text(out, report.render(format) + "\n")
    return out


def warn_without_scores(rule: "LikenessRule") -> None:
    """Log a warning if the rule allows matches by a model's scores, but has no scores."""
    if "model" in rule.ways and not rule.score_runs:
        log.warning(
            "without --scores, few reworded questions are found (1 in 80 on cMedQQ, see docs/similar.md); write scores"
            " of any encoder: python -m baselines match --model M --release DIR --out RUN"
        )
