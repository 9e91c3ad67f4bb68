"""The step `no-answer` of `errors`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from baselines.measure.measure_options import QrelsConfig
from builders.core.errors import UsageError
from builders.core.options import Between, Help, Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.core.words import SEGMENTERS
from builders.store.release_options import AnySplit, QuestionConfig, ReleasePath, RunPath, Seed, SetName
from builders.text.ngram_options import NGRAM, SHARE, LowestJaccard, NgramLength
from builders.text.span_options import THRESHOLD, Segmenter, SpanOptions, SpanThreshold, Unit

FALSE_ANSWERS = 0.1


@verb(formats=TABLE_FORMATS)
def report_no_answer(
    runs: Annotated[
        Sequence[RunPath], Use.POSITIONAL, Help("run with the scores of its passages, for example a TREC run")
    ],
    *,
    release: ReleasePath,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    false_answers: Annotated[float, Between(low=0, high=0.99), Placeholder("X")] = FALSE_ANSWERS,
    unit: Unit = "word",
    segmenter: Segmenter = SEGMENTERS[0],
    threshold: SpanThreshold = THRESHOLD,
    ngram: NgramLength = NGRAM,
    jaccard: LowestJaccard = SHARE,
    pruned: Annotated[
        RunPath, Placeholder("RUN"), Help("the same system's run without answering passages, for a fusion")
    ]
    | None = None,
    write_pruned: Annotated[Path, Placeholder("RUN")] | None = None,
    list: Annotated[Path, Placeholder("FILE")] | None = None,
    seed: Seed = 0,
) -> Report:
    """Measure whether scores tell when no passage answers a question.

    From each question's list, the step removes the passages that answer the question: its positives, unjudged
    near-duplicates of its positives and, if the release has the config `answers`, unjudged passages that contain an
    answer. Nothing in the new list answers the question. The step prints the AUROC of the best score, and of the gap
    between the two best scores: how well they separate the old lists from the new lists.

    It then chooses a threshold on a random half of the questions, so that at most --false-answers of the new lists are
    above the threshold. On the other half, it prints the share of new lists above the threshold (false answers) and the
    share of old lists above the threshold (coverage). The last table has mteb's nAUC. Intervals are of 95 %.

    The scores of a fusion depend on the removed passages. So write each run with --write-pruned, fuse these runs, and
    compare by --pruned (docs/errors.md).

    Args:
        release: release with the reference judgments and the texts of the passages
        split: split of the release
        false_answers: highest share of false answers, below 1
        write_pruned: write the run without answering passages, for `fuse`
        list: write each question's scores and removed passages, as JSON lines
        seed: seed of the halves and of the resamples

    Returns:
        The figures of each run. The value is a list with the JSON object of each run.

    Raises:
        InputError: a file or the release is wrong, a run is too short, or a run has no scores.

    Examples:
        python -m baselines errors no-answer --release build/sample bm25.dev.run.gz e5.dev.run.gz
        python -m baselines errors no-answer --release DIR --false-answers 0.05 --list lists.jsonl RUN
    """
    from baselines.measure.answering_passages import AnsweringRule
    from baselines.measure.no_answer import (
        measure_no_answer,
        no_answer_report,
        pair_lists,
        write_pairs,
        write_pruned_run,
    )
    from baselines.measure.reference_source import ReferenceSource
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS
    from builders.store.original_runs import read_release_run
    from builders.store.reader import open_release
    from builders.store.stored_answers import find_answer_texts

    for option, value in (("--pruned", pruned), ("--write-pruned", write_pruned)):
        if value is not None and len(runs) != 1:
            raise UsageError(f"{option} belongs to one run; expected one run, found {len(runs)}")
    # Refuse wrong outputs before any run is read.
    opened_release = open_release(release)
    check_outputs({"--list": list, "--write-pruned": write_pruned}, [*runs, pruned, opened_release.path])
    source = ReferenceSource.of_options(
        release=opened_release, qrels=None, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    opened_runs = [read_release_run(run, opened_release) for run in runs]
    pruned_run = None if pruned is None else read_release_run(pruned, opened_release)
    reference = source.read()
    source.warn_of_origins(opened_runs, reference)
    answers = find_answer_texts(opened_release, set, split)
    spans = SpanOptions(unit, threshold, segmenter=segmenter)
    rule = AnsweringRule(opened_release, SETS[set].corpus, ngram, jaccard, answers, spans)
    results = []
    pairs_by_run = []
    for run in opened_runs:
        pairs, skipped = pair_lists(run, reference, rule, pruned_run)
        pairs_by_run.append((run, pairs))
        results.append(measure_no_answer(run, reference, pairs, skipped, false_answers=false_answers, seed=seed))
    if write_pruned is not None:
        write_pruned_run(write_pruned, opened_runs[0], reference, rule)
    if list is not None:
        write_pairs(list, pairs_by_run)
    return no_answer_report(results, reference, has_answers=bool(answers))
