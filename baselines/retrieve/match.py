"""The verb `match`: find similar questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from baselines.core.endpoint_options import (
    Dimensions,
    EncodingFormat,
    EndpointUrl,
    Parallel,
    QueryInputType,
    QueryModel,
    RequestCharacters,
    RequestTexts,
)
from baselines.core.model_options import (
    Backend,
    BatchTokens,
    Device,
    Dtype,
    Engine,
    MaxLength,
    ModelName,
    QueryPrompt,
    RayAddress,
    Revision,
    TaskCpus,
    Tokenizers,
    TopK,
    TrustRemoteCode,
)
from builders.core.errors import InputError, UsageError
from builders.core.options import Excludes, Needs, NotNegativeInt, Placeholder, Share
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import ReleasePath, SetName

if TYPE_CHECKING:
    from baselines.retrieve.devices import Work
    from baselines.retrieve.question_matching import QuestionMatches
    from baselines.retrieve.question_pairs import QuestionPair
    from baselines.retrieve.rerankers import OpenReranker
    from baselines.retrieve.vector_index import Retriever
    from builders.core.results import Report


@verb(formats=TABLE_FORMATS, resumes=True)
def match_questions(
    release: ReleasePath | None = None,
    *,
    model: ModelName,
    out: Annotated[Path, Placeholder("RUN")],
    set: SetName = "main",
    split: Sequence[Annotated[str, Placeholder("S"), Needs("release")]] = (),
    encoder: Annotated[ModelName, Placeholder("DE"), Needs("release")] | None = None,
    top_k: Annotated[TopK, Needs("release")] = 50,
    recall_sample: Annotated[NotNegativeInt, Placeholder("N"), Needs("release")] = 0,
    threshold: Annotated[Share, Placeholder("X"), Needs("release")] = 0.5,
    calibrate: Sequence[Annotated[str, Placeholder("FILE")]] = (),
    precision: Annotated[Share, Placeholder("P"), Needs("calibrate")] = 0.8,
    endpoint: EndpointUrl | None = None,
    query_prompt: Annotated[QueryPrompt, Needs("endpoint")] | None = None,
    parallel: Parallel = 4,
    query_model: QueryModel | None = None,
    dimensions: Dimensions | None = None,
    query_input_type: QueryInputType | None = None,
    encoding_format: EncodingFormat = "base64",
    request_texts: RequestTexts = 32,
    request_characters: RequestCharacters = 32_000,
    max_length: MaxLength | None = None,
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    revision: Revision = "",
    trust_remote_code: TrustRemoteCode = False,
    device: Device | None = None,
    dtype: Dtype = "auto",
    engine: Annotated[Engine, Excludes("calibrate")] = "local",
    ray_address: RayAddress | None = None,
    task_cpus: TaskCpus | None = None,
) -> "QuestionMatches | Report":
    """Find training questions that ask the same as dev or test.

    --model is a cross-encoder for question matching (`train question-matching`, Section 2.3) or a dual-encoder. A
    cross-encoder scores two questions by the probability that both ask the same. A dual-encoder scores two questions
    by the cosine of their embeddings, with the query prompt of `run`. Negative cosines count as 0.

    Only candidates are scored: the --top-k best training questions by BM25, and the --top-k best by the dual-encoder
    (--model or --encoder). --recall-sample N also scores N questions with every training question, and prints the
    share of similar pairs that are candidates. The output is a TREC run: a dev or test question, a training question,
    and a score from 0 to 1. `python -m builders similar --scores RUN` removes the training questions with scores above
    a threshold. An interrupted command resumes when it is started again.

    With --endpoint URL, --model is a dual-encoder behind OpenAI's API of embeddings. The questions are sent there.
    ENDPOINT_API_KEY is the key. Every vector is kept, so that no question is paid for twice. RUN.manifest.json then
    records tokens and seconds.

    --calibrate only writes the threshold that reaches --precision on labelled pairs. Precision and recall are measured
    on other pairs, with intervals of 95 %. The verb fails if the scores cannot tell the pairs with label 1 from label
    0.

    Args:
        release: release directory (required without --calibrate)
        out: run to write, gzipped if it ends in .gz. With --calibrate, JSON file of the threshold.
        split: splits to compare with train (default: dev test)
        model: cross-encoder or dual-encoder: hub or folder; or name at the endpoint
        encoder: dual-encoder that finds candidates for a cross-encoder
        top_k: candidates per method
        recall_sample: score N questions with every training question, to measure recall
        threshold: count pairs with scores above X as similar, as in the paper; RUN has all pairs
        calibrate: only write a threshold from pairs (format of `train --pairs`)
        precision: target precision

    Returns:
        The run of the scores, with counts in its attribute ``report``. With ``calibrate``, the report of the threshold.

    Raises:
        InputError: a model has the wrong kind, a split has no questions, or the scores cannot tell the labels apart.

    Examples:
        python -m baselines match --model intfloat/multilingual-e5-small --calibrate LCQMC/dev.tsv \\
          --out build/threshold.json
        python -m baselines match --release build/sample --model build/models/question-matching \\
          --encoder intfloat/multilingual-e5-small --recall-sample 20 --out build/runs/similar.run.gz
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.core.endpoint_options import read_endpoint_options
    from builders.core.hub import check_models
    from builders.core.paths import check_outputs

    if bool(calibrate) == (release is not None):
        raise UsageError("expected either --release or --calibrate")
    # Names are checked before the import of the model libraries, which takes seconds.
    endpoint_options = read_endpoint_options(arguments)
    if endpoint_options is not None and endpoint_options.kind != "dense":
        raise UsageError("endpoint: expected the address of embeddings, which ends in /v1 or /embeddings")
    check_models(encoder, *([model] if endpoint_options is None else []))
    release_path = release if release is None or isinstance(release, Path) else release.path
    models = [Path(name) for name in (model, encoder) if name]
    check_outputs({"--out": out}, [*map(Path, calibrate), *models, release_path])

    from baselines.retrieve import question_matching
    from baselines.retrieve.clusters import cluster_of
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.question_pairs import pair_file, read_question_pairs
    from builders.store.layout import SETS
    from builders.store.reader import open_release

    # Wrong pairs and splits are reported before a model is opened.
    labelled_pairs = []
    questions = None
    if release is None:
        labelled_pairs = read_question_pairs(pair_file(text) for text in calibrate)
    else:
        questions = question_matching.read_splits(open_release(release), SETS[set].queries, split)

    cluster = cluster_of(engine, ray_address, task_cpus, device)
    work = work_of(device, dtype, batch_tokens, tokenizers, backend, cluster)
    scoring_model: Retriever | OpenReranker
    if endpoint_options is not None:
        from baselines.core.settings import ModelOptions
        from baselines.retrieve.endpoint_models import open_endpoint_encoder

        scoring_model = open_endpoint_encoder(model, ModelOptions(query_prompt=query_prompt, endpoint=endpoint_options))
    else:
        scoring_model = question_matching.open_question_model(
            model,
            work=work,
            max_length=max_length,
            revision=revision,
            trust_remote_code=trust_remote_code,
            similarity="cosine",
        )
    # With --calibrate, only a threshold is written.
    if questions is None:
        return _write_threshold(out, model, scoring_model, labelled_pairs, precision)

    # A cross-encoder may have a dual-encoder that finds candidates.
    candidate_encoder = None
    if encoder:
        candidate_encoder = _open_candidate_encoder(encoder, scoring_model, work, max_length, trust_remote_code)
    matches = question_matching.find_matches(
        questions,
        scoring_model,
        encoder=candidate_encoder,
        out=out,
        top_k=top_k,
        threshold=threshold,
        recall_sample=recall_sample,
        max_length=max_length,
    )
    if endpoint_options is not None:
        question_matching.write_costs(out, scoring_model, matches)
    return matches


def _write_threshold(
    out: Path,
    model_name: str,
    scoring_model: "Retriever | OpenReranker",
    labelled_pairs: "Sequence[QuestionPair]",
    precision: float,
) -> "Report":
    """Determine the threshold of a model that reaches ``precision`` on labelled pairs, and write it as JSON."""
    import json

    from baselines.retrieve.model_files import shown_name
    from baselines.retrieve.question_matching import score_question_pairs
    from baselines.retrieve.threshold_calibration import calibrate_threshold, calibration_report
    from builders.core.write_files import write_text

    scores = score_question_pairs(scoring_model, [(pair.first, pair.second) for pair in labelled_pairs])
    labels = [pair.label for pair in labelled_pairs]
    result = {"model": shown_name(model_name)}
    result.update(calibrate_threshold(scores, labels, precision))
    write_text(out, json.dumps(result, indent=1) + "\n")
    return calibration_report(result)


def _open_candidate_encoder(
    encoder_name: str,
    scoring_model: "Retriever | OpenReranker",
    work: "Work",
    max_length: int | None,
    trust_remote_code: bool,
) -> "Retriever":
    """Open the dual-encoder of --encoder, which finds candidates for a cross-encoder.

    Raises :class:`InputError` if --model is a dual-encoder itself, or if --encoder is not a dual-encoder.
    """
    from baselines.retrieve.question_matching import open_question_model
    from baselines.retrieve.vector_index import Retriever

    if isinstance(scoring_model, Retriever):
        raise InputError("--encoder: --model is a dual-encoder and finds candidates itself; remove --encoder")
    encoder = open_question_model(encoder_name, work=work, max_length=max_length, trust_remote_code=trust_remote_code)
    if not isinstance(encoder, Retriever):
        raise InputError("scores pairs; expected a dual-encoder for --encoder", path=encoder_name)
    return encoder
