"""The verb `mine`: sample hard negatives from a run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from baselines.core.model_options import (
    Backend,
    BatchTokens,
    Device,
    Dtype,
    Engine,
    MaxLength,
    RayAddress,
    Revision,
    TaskCpus,
    Tokenizers,
    TopK,
)
from builders.core.errors import UsageError
from builders.core.options import Again, AtLeastOne, Between, Excludes, Needs, Placeholder, Share
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, QueriesFile, QuestionConfig, ReleasePath, RunPath, Seed, SetName

if TYPE_CHECKING:
    from baselines.train.hard_negatives import MinedNegatives

ModelName = Annotated[str, Placeholder("M")]
OF_MODEL = Needs("cross_encoder", "bi_encoder")
OF_DENOISING = Needs("denoise")
AnyNumber = Annotated[float, Between(), Placeholder("X")]
# Raise this number if the same call gives other negatives than before.
RESULT_VERSION = 4


@verb()
def mine_negatives(
    release: ReleasePath,
    *,
    run: RunPath,
    out: Annotated[Path, Placeholder("F")],
    set: SetName = "main",
    split: AnySplit = "train",
    queries: QuestionConfig | None = None,
    top_k: TopK = 50,
    negatives: Annotated[AtLeastOne, Placeholder("N")] = 4,
    seed: Seed = 0,
    cross_encoder: Annotated[ModelName, Excludes("bi_encoder")] | None = None,
    bi_encoder: ModelName | None = None,
    margin: AnyNumber | None = None,
    relative_margin: Annotated[Share, Placeholder("X")] | None = None,
    max_score: AnyNumber | None = None,
    denoise: Annotated[bool, Needs("cross_encoder"), Excludes("margin"), Excludes("relative_margin")] = False,
    positive_score: Annotated[Share, OF_DENOISING, Placeholder("X")] = 0.9,
    fill_to: Annotated[AtLeastOne, OF_DENOISING, Placeholder("K")] = 200,
    hidden_positives: Annotated[Path, OF_DENOISING, Excludes("queries_file"), Placeholder("F")] | None = None,
    queries_file: Annotated[QueriesFile, OF_DENOISING, Excludes("queries")] | None = None,
    max_length: Annotated[MaxLength, OF_MODEL] | None = None,
    batch_tokens: Annotated[BatchTokens, OF_MODEL] | None = None,
    tokenizers: Annotated[Tokenizers, OF_MODEL] | None = None,
    backend: Annotated[Backend, OF_MODEL] = "torch",
    revision: Annotated[Revision, OF_MODEL] = "",
    device: Annotated[Device, OF_MODEL] | None = None,
    dtype: Annotated[Dtype, OF_MODEL] = "auto",
    engine: Annotated[Engine, OF_MODEL] = "local",
    ray_address: RayAddress | None = None,
    task_cpus: TaskCpus | None = None,
    again: Again = False,
) -> "MinedNegatives":
    """Sample hard negatives for training from a run.

    A hard negative is a passage that a retriever ranks high and that is not a known positive. By default, 4 negatives
    for each positive passage are sampled from the top 50 (Sections 3.1 and A.2), so a query with 2 positives gets 8
    negatives. Known positives are excluded by id and by text, ignoring case, character width and spaces. A query's
    sample depends on the seed and the query's top passages, not on their order. --set crosslingual also accepts a run
    of Chinese queries.

    A candidate that scores like a positive may be an unjudged positive. These limits exclude such candidates:

      --max-score X        candidates that score above X
      --margin X           candidates that score above (best positive's score - X)
      --relative-margin X  candidates that score above (1 - X) x (best positive's score), like NV-Retriever

    --denoise denoises as RocketQA (2021) does, by the probabilities of --cross-encoder: a negative scores at most 0.1
    (--max-score), and a passage above 0.9 (--positive-score) is a hidden positive. If the top 50 have too few
    negatives, the ranks below are tried in order, down to --fill-to. The run needs these ranks (bm25 --top-k 200).
    --hidden-positives F scores all of the top 50, and writes the hidden positives for `train --machine-labels F`.
    --queries-file labels questions that have no labels: --out then has the positives and negatives of every question
    with a positive, also for `train --machine-labels`. Questions of the release are skipped, so that no dev or test
    question is learned. Each line names the model (labelled-by), and F.manifest.json the model's hashes and the limits.

    Scores are probabilities of --cross-encoder, similarities of --bi-encoder, or by default the scores of the run.
    Without a model, a positive that the run lacks gets the score of the query's last passage in the run.

    Each line of the output is a JSON object: {"query-id": ..., "negative-ids": [...]}. Queries are in the judgments'
    order. Without --denoise, ids are in random order, so the first n ids of a list are also a random sample. `python -m
    builders annotate relabel` finds positives among the ids.

    Args:
        run: run of the split's queries, or of those of --queries-file
        out: JSON lines to write, gzipped if F ends in .gz
        top_k: sample from the K best passages
        negatives: negatives for each positive
        seed: seed of the sample
        cross_encoder: score candidates with this model (default: the run)
        bi_encoder: score candidates with this dual-encoder (default: the run)
        margin: exclude scores above best positive score - X (default: no limit)
        relative_margin: exclude scores above (1 - X) x best positive score (default: no limit)
        max_score: exclude scores above X (default: no limit, and 0.1 with --denoise)
        denoise: keep only negatives that the cross-encoder rejects, as RocketQA does
        positive_score: a passage above this probability is a hidden positive
        fill_to: look for lacking negatives down to this rank
        hidden_positives: JSON lines to write, with the hidden positives of the training questions
        queries_file: with --denoise, label these queries, which RUN has, not a split's: JSON lines (_id, text), TSV
            (id, text), or a text per line

    Returns:
        The file of negatives, with counts of queries and candidates.

    Raises:
        InputError: the run has no query of the split, a model has no limit, or a file is damaged.

    Examples:
        python -m baselines mine --release build/sample --split train --run build/runs/bm25.train.run.gz \\
          --out build/negatives/bm25.jsonl.gz
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    import contextlib
    import functools

    from baselines.core.passages import open_passages
    from baselines.measure.qrels import Qrels, expect_main, release_qrels
    from baselines.retrieve.hub_models import name_of_folder
    from baselines.retrieve.model_files import UNCHANGING, device_kind, model_input
    from baselines.train import denoising, hard_negatives
    from builders.core.errors import InputError
    from builders.core.exit_codes import set_resumable
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, option_values, record_finished
    from builders.core.hub import check_models
    from builders.core.paths import check_outputs, kind_of
    from builders.store.layout import SETS
    from builders.store.original_runs import ORIGINAL_ID_SPLITS, read_release_run
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release
    from builders.store.verb_inputs import release_input, run_input

    # Wrong options, names and paths are reported before the release is read.
    if denoise and max_score is None:
        max_score = arguments["max_score"] = denoising.MAX_SCORE
    limits = hard_negatives.ScoreLimits(margin, relative_margin, max_score)
    model = cross_encoder or bi_encoder
    if model and not limits.is_limited:
        raise UsageError("--cross-encoder and --bi-encoder need --denoise, --margin, --relative-margin or --max-score")
    if denoise and not 0 <= limits.limit([]) < positive_score:
        raise UsageError(
            f"--max-score {max_score}: expected a probability of at least 0 and below --positive-score {positive_score}"
        )
    check_models(model)
    unlabelled = open_queries(queries_file) if queries_file is not None else None
    labels_path = out if unlabelled is not None else hidden_positives
    if labels_path is not None and kind_of(labels_path) == "stream":
        raise InputError(
            "is a device or a pipe; expected a file, because labels have a manifest beside them", path=labels_path
        )
    release = open_release(release)
    outputs: dict[str, Path | None] = {"--out": out, "--hidden-positives": hidden_positives}
    if labels_path is not None:
        outputs["the manifest of the labels"] = denoising.label_manifest(labels_path)
    model_path = Path(model) if model else None
    check_outputs(outputs, [run, queries_file, release.path, model_path])
    configs = SETS[set]
    query_config = expect_main(set, "--queries", queries)

    # Everything that the negatives depend on. A finished file of the same call is returned.
    call = None
    if is_kept(out):
        splits = [(configs.corpus, "corpus"), (configs.qrels, split), (configs.queries, split), (query_config, split)]
        splits += ORIGINAL_ID_SPLITS
        if unlabelled is not None:
            splits += denoising.question_splits(release)
        inputs = {"release": release_input(release, splits), "run": run_input(run)}
        for name, model_name in (("cross_encoder", cross_encoder), ("bi_encoder", bi_encoder)):
            if model_name:
                inputs[name] = model_input(model_name, revision)
        if unlabelled is not None:
            inputs["queries_file"] = unlabelled.as_input()
        options = option_values(arguments, inputs, UNCHANGING)
        # The record has no local path, but another file of hidden positives must be written.
        if hidden_positives is not None:
            options["hidden_positives"] = os.path.relpath(hidden_positives, out.parent)
        options["device"] = device_kind(device)
        call = VerbCall("mine", RESULT_VERSION, options, inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        return hard_negatives.MinedNegatives(finished.path, **finished.result)

    # Read the judgments and the run. Unknown ids are reported before a model is opened.
    query_texts = None
    if unlabelled is None:
        qrels = release_qrels(release, split, set, query_config)
    else:
        query_texts = denoising.unlabelled_questions(unlabelled, release)
        qrels = Qrels(unlabelled.name, {query_id: {} for query_id in query_texts})
    ranking = read_release_run(run, release)
    if set == "crosslingual":
        ranking = hard_negatives.for_english(ranking, release, split)
    hard_negatives.expect_judged_queries(ranking, qrels)
    passages = open_passages(release, configs.corpus)
    hard_negatives.expect_top_passages(ranking, passages, max(top_k, fill_to) if denoise else top_k)

    # Draw the candidates, and select the negatives of each query.
    candidates = hard_negatives.draw_candidates(
        ranking,
        qrels,
        passages,
        top_k=top_k,
        negatives_per_positive=negatives,
        seed=seed,
        # A candidate above the limits is replaced by the next candidate.
        draw_all=limits.is_limited,
        fill_to=fill_to if denoise else 0,
    )
    write = functools.partial(
        hard_negatives.write_negatives, out, query_count=len(qrels.positives), is_limited=limits.is_limited
    )
    files: list[Path] | None = None
    if model is None:
        mined = write(hard_negatives.select_by_run(candidates, ranking, limits))
    else:
        from baselines.core.settings import ModelOptions
        from baselines.retrieve.clusters import cluster_of
        from baselines.retrieve.devices import work_of
        from baselines.retrieve.model_kinds import expect_encoder
        from baselines.retrieve.rerankers import pair_job

        texts = query_texts
        if texts is None:
            texts = hard_negatives.read_query_texts(release, split, query_config or configs.queries, qrels)
        cluster = cluster_of(engine, ray_address, task_cpus, device)
        job = pair_job(
            model=model,
            release=release,
            corpus=configs.corpus,
            options=ModelOptions(max_length=max_length, revision=revision),
            work=work_of(device, dtype, batch_tokens, tokenizers, backend, cluster),
        )
        is_dual = bi_encoder is not None
        if is_dual:
            expect_encoder(job.reranker.settings)
        scorer = hard_negatives.CandidateScorer(job, is_dual)
        # The results in the work folder survive an interruption.
        set_resumable(call is not None)
        with hard_negatives.open_work_folder(out, call) as work_folder:
            if denoise:
                denoising_limits = denoising.DenoisingLimits(
                    limits.limit([]), positive_score, score_all=hidden_positives is not None or query_texts is not None
                )
                # A model on the hub has its repository's name.
                model_name = name_of_folder(Path(model)) if Path(model).is_dir() else model
                model_hashes = dict(model_input(model, revision).hashes)
                labelled = denoising.denoise_candidates(candidates, texts, scorer, denoising_limits, work_folder)
                with contextlib.closing(labelled):
                    mined = denoising.write_denoised(
                        out,
                        labelled,
                        query_count=len(qrels.positives),
                        labels_out=hidden_positives,
                        query_texts=query_texts,
                        model_name=model_name,
                        manifest=denoising.describe_labels(model_name, model_hashes, denoising_limits),
                    )
                files = denoising.written_files(out, hidden_positives, has_labels=query_texts is not None)
            else:
                selections = hard_negatives.select_by_model(candidates, texts, scorer, limits, work_folder)
                with contextlib.closing(selections):
                    mined = write(selections)
    record_finished(out, call, files=files, result=mined.counts())
    return mined
