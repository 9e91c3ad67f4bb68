"""Re-rankers: cross-encoders, language models, and models behind an endpoint. All devices share the work.

A language model is asked if a passage answers a query. The score is the logit of yes minus the logit of no. A chat
template with the roles query and document is used unchanged. An example is Qwen3-Reranker as sentence-transformers
saves it. Other chat templates get the prompt of Qwen3-Reranker's model card: an instruction, the query and the passage.
The prompt asks for yes or no without thinking.

A model behind an endpoint sorts several passages at once, as in RankGPT (Sun et al., 2023, arXiv 2304.09542). A window
of 20 passages moves over the ranking from the end to the beginning in steps of 10, so the last passage can become the
first. Passages that an answer omits follow the named passages in their old order. An answer that names no passage
changes nothing. The first of n passages scores n and the last scores 1, so scores are comparable only within a query.
The endpoint needs OpenAI's chat API (OPENAI_BASE_URL, OPENAI_API_KEY). Queries and passages are sent to the endpoint.
"""

import abc
import contextlib
import itertools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sentence_transformers import CrossEncoder

from baselines.core.passages import CachedPassages, open_passages
from baselines.core.run_costs import preparing, report_query, report_texts
from baselines.core.settings import NO_OPTIONS, ModelOptions, ModelSettings, Overrides
from baselines.retrieve.devices import Work, move_model, over_devices
from baselines.retrieve.encoder import CrossScorer, TextEncoder
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_kinds import kind_of_reranker
from baselines.retrieve.models import describe_model, expect_no, open_cross, open_encoder
from baselines.retrieve.reading_checks import check_reading, check_room_for_texts
from baselines.retrieve.vector_index import resume_or_run
from builders.core.endpoint import Endpoint
from builders.core.errors import InputError, log
from builders.core.jobs import LastResult
from builders.core.progress import show_progress
from builders.core.reply_limits import in_daemon_threads
from builders.core.shares import report_share
from builders.store.reader import Release, open_release

# The prompt of Qwen3-Reranker. Sources: the model card, and vllm-project/vllm-ascend,
# docs/source/tutorials/models/Qwen3_reranker.md.
_SYSTEM_PROMPT = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The user's message, as an expression of Jinja. "~" joins texts.
_USER_MESSAGE = '"<Instruct>: " ~ instruct ~ "\\n<Query>: " ~ query ~ "\\n<Document>: " ~ document'

# A model behind an endpoint sees a window of passages, which moves by a step.
PASSAGES_PER_WINDOW = 20
WINDOW_STEP = 10
_PASSAGE_CHARACTERS = 1_000  # a longer passage is cut in a prompt
_ORDER_INSTRUCTION = "按照与问题的相关程度，把下面的段落从最相关到最不相关排序：能直接、完整回答问题的排在最前面。"


@dataclass(frozen=True)
class OpenReranker(abc.ABC):
    """A model that scores (query, passage) pairs. A higher score means a better answer."""

    settings: ModelSettings
    work: Work
    kind: ClassVar[str]

    @abc.abstractmethod
    def result_inputs(self) -> dict[str, Any]:
        """Return everything that affects the scores, as JSON values. Open a local model for its fingerprint."""

    @abc.abstractmethod
    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        """Return a finite score of every (query, passage), in the pairs' order. Compare scores only within a query.

        The pairs of a query must be adjacent and in the order of the run. Adjacent queries of the same text count as
        one query. Only :meth:`ListwiseReranker.score_groups` scores them apart.
        """

    def score_groups(self, groups: Sequence[tuple[str, Sequence[str]]], device: str) -> list[list[float]]:
        """Return the scores of each group's passages, in order. A group is a query and its passages, as texts."""
        # The pairs of all queries are scored together, so that a batch has pairs of similar lengths.
        pairs = []
        for query_text, passage_texts in groups:
            pairs += [(query_text, passage_text) for passage_text in passage_texts]
        remaining_scores = iter(self.score(pairs, device))
        return [list(itertools.islice(remaining_scores, len(passage_texts))) for _, passage_texts in groups]

    @property
    def is_remote(self) -> bool:
        """True for a model behind an endpoint. Each request costs money."""
        return False

    def measured_costs(self) -> dict[str, Any]:
        """Return the costs of a re-ranker behind an endpoint, for a manifest (JSON). Other models have none."""
        return {}


class CrossEncoderReranker(OpenReranker):
    """A cross-encoder. Its scores are logits, which rank passages as ``CrossEncoder.predict`` does."""

    kind = "cross"

    def open_model(self) -> CrossEncoder:
        return open_cross(self.settings)

    def result_inputs(self) -> dict[str, Any]:
        model = self.open_model()
        description = {"kind": self.kind, **describe_model(self.settings, model, self.work.dtype)}
        if self.kind == "llm":
            description["template"] = model[0].processor.chat_template
        return description

    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        if not pairs:
            return []
        scores: list[float] = _open_scorer(self, device).scores(pairs).tolist()
        return scores


@LastResult
def _open_scorer(reranker: CrossEncoderReranker, device: str) -> CrossScorer:
    """Return the re-ranker's scorer on a device. A process opens the model once."""
    with preparing():
        model = move_model(reranker.open_model(), device, reranker.work.dtype)
        return CrossScorer(model, tokens=reranker.work.batch_tokens, tokenizers=reranker.work.tokenizers)


class LanguageModel(CrossEncoderReranker):
    """A language model. A score is the logit of yes minus the logit of no."""

    kind = "llm"

    def open_model(self) -> CrossEncoder:
        """Open the model, with a chat template for pairs of a query and a document.

        Raises :class:`InputError` for a model without a chat template, or without tokens for yes and no.
        """
        model = super().open_model()
        transformer: Any = model[0]
        template = transformer.processor.chat_template
        if not isinstance(template, str):
            raise InputError(
                "has no chat template; expected an instruction-tuned language model", path=self.settings.name
            )
        # model[1] subtracts the logit of the token no from that of the token yes.
        unknown_id = transformer.tokenizer.unk_token_id
        for attribute in ("true_token_id", "false_token_id"):
            if getattr(model[1], attribute, None) in (None, unknown_id):
                raise InputError("has no token for yes or for no", path=self.settings.name)
        # A template that names the roles query and document, in quotation marks, is made for pairs.
        pair_roles = set(re.findall(r"""['"](query|document)['"]""", template))
        if pair_roles < {"query", "document"}:
            self._set_pair_template(transformer, template)
        check_room_for_texts(model, self.settings.name)
        check_reading(model, self.settings)
        return model

    def _set_pair_template(self, transformer: Any, template: str) -> None:
        """Give a model a chat template for pairs. Raises :class:`InputError` if the model's template cannot be used."""
        failure = None
        for with_system in (True, False):  # some chat templates refuse a system message
            transformer.processor.chat_template = pair_template(template, with_system)
            failure = transformer.input_formatter.pair_roles_failure({})
            if failure is None:
                return
        raise InputError(f"its chat template cannot be used for pairs ({failure})", path=self.settings.name)


def pair_template(template: str, with_system: bool = True) -> str:
    """Convert a chat template with the usual roles to a template with the roles query and document.

    The result is a Jinja template. It sets variables, and then renders the model's own ``template`` with these
    variables. Shortened, for a template with a system message::

        {%- set query = CONTENT OF THE FIRST MESSAGE OF THE ROLE query -%}
        {%- set document = CONTENT OF THE FIRST MESSAGE OF THE ROLE document -%}
        {%- set instruct = CONTENT OF THE FIRST MESSAGE OF THE ROLE system, OR _INSTRUCTION -%}
        {%- set messages = [{"role": "system", ...}, {"role": "user", "content": _USER_MESSAGE}] -%}
        {%- set add_generation_prompt = true -%}{%- set enable_thinking = false %}TEMPLATE

    ``_SYSTEM_PROMPT`` is a system message if ``with_system`` is true, else the beginning of the user's message.
    """
    system_prompt = json.dumps(_SYSTEM_PROMPT, ensure_ascii=False)
    if with_system:
        system_message = f'{{"role": "system", "content": {system_prompt}}}, '
        user_message = _USER_MESSAGE
    else:
        system_message = ""
        user_message = f'{system_prompt} ~ "\\n\\n" ~ {_USER_MESSAGE}'
    instruction = json.dumps(_INSTRUCTION)
    return (
        f"{{%- set query = {_first_content('query')} -%}}"
        f"{{%- set document = {_first_content('document')} -%}}"
        f"{{%- set instruct = {_first_content('system', instruction)} -%}}"
        f'{{%- set messages = [{system_message}{{"role": "user", "content": {user_message}}}] -%}}'
        "{%- set add_generation_prompt = true -%}{%- set enable_thinking = false %}"
        f"{template}"
    )


def _first_content(role: str, default: str = "") -> str:
    """Return the Jinja expression of the content of a role's first message. ``default`` is an expression, too."""
    contents = f'messages | selectattr("role", "equalto", "{role}") | map(attribute="content") | list'
    return f"({contents} + [{default}]) | first"


class ListwiseReranker(OpenReranker):
    """A model behind an endpoint, which sorts the passages of a query."""

    kind = "listwise"

    @property
    def is_remote(self) -> bool:
        return True

    def result_inputs(self) -> dict[str, Any]:
        expect_no(self.settings, "a model behind an endpoint", "revision", "max_length", "trust_remote_code")
        return {
            "kind": self.kind,
            "name": self.settings.name,
            "window": [PASSAGES_PER_WINDOW, WINDOW_STEP],
            # The prompt of an empty query and passage, because scores depend on its wording.
            "asked": order_prompt("", [""], self.settings.query_prompt or ""),
        }

    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        """Return the score of every (query, passage), from the model's order of each query's passages.

        The pairs of a query must be adjacent and in the order of the run. ``device`` is not used.
        """
        groups: list[tuple[str, list[str]]] = []
        for query_text, query_pairs in itertools.groupby(pairs, key=lambda pair: pair[0]):
            groups.append((query_text, [passage_text for _, passage_text in query_pairs]))
        return list(itertools.chain.from_iterable(self.score_groups(groups, device)))

    def score_groups(self, groups: Sequence[tuple[str, Sequence[str]]], device: str) -> list[list[float]]:
        """Return the scores of each query's passages, from the model's order. ``device`` is not used.

        Each group is sorted by itself, also next to a group of the same query text.
        """
        # Without ``otherwise``, the error of a missing address would advise an option that `rerank` lacks.
        endpoint = Endpoint(self.settings.name, otherwise="")

        def sort_group(group: tuple[str, Sequence[str]]) -> tuple[list[int], float]:
            query_text, passage_texts = group
            start_time = time.perf_counter()
            order = self._sort_passages(endpoint, query_text, passage_texts)
            return order, time.perf_counter() - start_time

        # Several queries are sorted at once. Their answers come in any order.
        orders: dict[int, list[int]] = {}
        for group_number, (order, seconds) in in_daemon_threads(sort_group, groups, self.work.parallel):
            orders[group_number] = order
            # Queries are not sent again to be timed, because answers may cost money. One passage needs no order, so
            # nothing was sent.
            if len(order) > 1:
                report_query(seconds, f"during the run, {self.work.parallel} queries at once")
            report_share(len(orders) / len(groups))

        # The first of n passages scores n, and the last scores 1.
        scores_by_group: list[list[float]] = []
        for group_number in range(len(groups)):
            order = orders[group_number]
            group_scores = [0.0] * len(order)
            for rank, passage_number in enumerate(order):
                group_scores[passage_number] = float(len(order) - rank)
            scores_by_group.append(group_scores)
        return scores_by_group

    def _sort_passages(self, endpoint: Endpoint, query_text: str, passage_texts: Sequence[str]) -> list[int]:
        """Return the numbers of a query's passages, best first.

        The window moves from the end to the beginning. For example, 40 passages need the windows 20-39, 10-29 and 0-19.
        """
        order = list(range(len(passage_texts)))
        if len(order) <= 1:
            return order
        end = len(order)
        while True:
            begin = max(0, end - PASSAGES_PER_WINDOW)
            window = order[begin:end]
            window_texts = [passage_texts[number] for number in window]
            prompt = order_prompt(query_text, window_texts, self.settings.query_prompt or "")
            window_order = parse_order(endpoint.answer(prompt), len(window))
            if window_order:
                order[begin:end] = [window[position] for position in window_order]
            else:
                log.warning("the answer to the query %r names no passage; the order is not changed", query_text)
            if begin == 0:
                return order
            end -= WINDOW_STEP


def order_prompt(query_text: str, passage_texts: Sequence[str], instruction: str = "") -> str:
    """Return the prompt that asks for the best order of passages. The passages are numbered from 1.

    ``instruction`` replaces the usual first line.
    """
    lines = []
    for number, passage_text in enumerate(passage_texts, start=1):
        one_line = " ".join(passage_text.split())
        lines.append(f"[{number}] {one_line[:_PASSAGE_CHARACTERS]}")
    numbered_passages = "\n".join(lines)
    return (
        f"{instruction or _ORDER_INSTRUCTION}\n\n问题：{query_text}\n\n段落：\n{numbered_passages}\n\n"
        f"共 {len(passage_texts)} 个段落，每个编号只写一次，格式如 [2] > [1] > [3]。只写排序结果，不要解释。"
    )


def parse_order(answer: str, passage_count: int) -> list[int]:
    """Return the order of passages in an answer, as numbers from 0. Return [] if the answer names no passage.

    Passages that the answer omits follow in their old order. For example, "[3] > [1]" for three passages is [2, 0, 1].
    """
    answer = re.sub(r"(?s)<think>.*?</think>", "", answer)  # the thoughts of a reasoning model
    # Some models omit the brackets.
    labels = re.findall(r"\[\s*(\d{1,4})\s*\]", answer) or re.findall(r"\d{1,4}", answer)
    order: dict[int, None] = {}  # a set in the order of the first mentions
    for label in labels:
        if 1 <= int(label) <= passage_count:
            order[int(label) - 1] = None
    if not order:
        return []
    order.update(dict.fromkeys(range(passage_count)))
    return list(order)


Group = tuple[str, list[str]]  # text of a query, ids of its passages
QUERIES_PER_FILE = 256  # queries whose scores are saved in one file
# The same for an endpoint; small, because an interruption loses paid answers.
ENDPOINT_QUERIES_PER_FILE = 16


def open_reranker(settings: ModelSettings, work: Work, kind: str = "") -> OpenReranker:
    """Return a model's re-ranker. The model's files determine an empty ``kind``. Raises :class:`InputError`."""
    # Other kinds of models have vectors, by which `run` searches.
    kinds: dict[str, type[CrossEncoderReranker | ListwiseReranker]] = {
        "cross": CrossEncoderReranker,
        "llm": LanguageModel,
        "listwise": ListwiseReranker,
    }
    reranker_kind = kind or kind_of_reranker(settings)
    if reranker_kind not in kinds:
        raise InputError(f"--kind {reranker_kind}: expected {', '.join(kinds)}, or a kind that `run` searches by")
    return kinds[reranker_kind](settings, work)


@dataclass(frozen=True)
class PairJob:
    """A re-ranker, and the config ``corpus`` and the split of the passages to score. Worker processes get the job."""

    release: Path
    corpus: str
    split: str
    reranker: OpenReranker


def pair_job(
    *,
    model: str,
    release: Release,
    corpus: str,
    work: Work,
    split: str = "corpus",
    options: ModelOptions = NO_OPTIONS,
) -> PairJob:
    """Return the job of a model that scores queries and passages of a release's config ``corpus``.

    Raises :class:`InputError` for an option that only other kinds of models have.
    """
    revision = options.revision
    if options.kind != "listwise":  # a model behind an endpoint is not on the hub
        revision = commit_of(model, revision)
    settings = ModelSettings(
        model,
        revision=revision,
        max_length=options.max_length,
        trust_remote_code=options.trust_remote_code,
        **options.overrides(),
    )
    for name in Overrides.__struct_fields__:
        if name != "query_prompt":
            expect_no(settings, "a model of pairs", name)
    return PairJob(release.path, corpus, split, open_reranker(settings, work, options.kind or ""))


def endpoint_work(parallel: int = 4) -> Work:
    """Return the work of a model behind an endpoint, which needs no device of this machine.

    ``parallel`` is the number of simultaneous requests.
    """
    return Work(("cpu",), "fp32", parallel=parallel)


def passages_of(job: PairJob) -> CachedPassages:
    """Open the passages of a job."""
    return open_passages(open_release(job.release), job.corpus, split=job.split)


def score_groups(job: PairJob, device: str, query_groups: Sequence[Group]) -> list[list[float]]:
    """Return the scores of each query's passages, in order. Raises :class:`InputError` for an unknown passage."""
    passages = passages_of(job)
    passage_ids = list(itertools.chain.from_iterable(group_ids for _, group_ids in query_groups))
    rows = passages.rows(passage_ids)
    if (rows < 0).any():
        unknown_id = passage_ids[int(rows.argmin())]  # an unknown id has the row -1
        raise InputError(f"{job.corpus}/{job.split} has no {unknown_id!r}; build the release again", path=job.release)
    passage_texts = iter(passages.texts(rows.tolist()))
    text_groups = []
    for query_text, group_ids in query_groups:
        text_groups.append((query_text, list(itertools.islice(passage_texts, len(group_ids)))))
    return job.reranker.score_groups(text_groups, device)


def score_windows(
    job: PairJob,
    query_groups: Sequence[Group],
    work_folder: Path,
    label: str,
    queries_per_file: int | None = None,
    *,
    close_model: bool = True,
) -> list[list[float]]:
    """Return the scores of each query's passages, in order, computed on all devices of the job.

    ``label`` is the text of the progress bar. The scores of ``queries_per_file`` queries (default:
    :data:`QUERIES_PER_FILE`) are saved in one file of ``work_folder``. A folder serves only one combination of job,
    groups and ``queries_per_file``. Without ``close_model``, the caller calls :func:`close_models` later.
    """
    queries_per_file = queries_per_file or QUERIES_PER_FILE
    tasks: list[_WindowTask] = []
    unscored_counts = []  # pairs that each task has to score
    for number, start in enumerate(range(0, len(query_groups), queries_per_file)):
        window = query_groups[start : start + queries_per_file]
        scores_path = work_folder / f"window-{number:06d}.json"
        tasks.append((job, scores_path, window))
        # Windows that an interrupted call has scored are read quickly, so they are no measure of the speed.
        unscored_counts.append(0 if scores_path.exists() else _count_pairs(window))
    pair_count = _count_pairs(query_groups)
    done_count = pair_count - sum(unscored_counts)
    scores: list[list[float]] = []
    try:
        with (
            contextlib.closing(over_devices(_score_window, tasks, job.reranker.work, work_folder)) as results,
            report_texts("pairs", pair_count - done_count),
            show_progress(total=pair_count, unit="pair", label=label, done=done_count) as bar,
        ):
            for window_scores in bar.follow(results, unscored_counts):
                scores += window_scores
    finally:
        if close_model:
            close_models()
    return scores


def close_models() -> None:
    """Forget the model of pairs that this thread has opened, for example in :func:`score_windows`, to free memory."""
    _open_scorer.cache_clear()


def opened_model(job: PairJob) -> Any | None:
    """Return the job's model on its first device, which is opened if necessary. None for a model behind an endpoint."""
    if not isinstance(job.reranker, CrossEncoderReranker):
        return None
    return _open_scorer(job.reranker, job.reranker.work.devices[0]).model


# A job, the file of the scores, and the queries of a window with their passages.
_WindowTask = tuple[PairJob, Path, Sequence[Group]]


def _count_pairs(query_groups: Sequence[Group]) -> int:
    return sum(len(passage_ids) for _, passage_ids in query_groups)


def _score_window(task: _WindowTask, device: str) -> list[list[float]]:
    """Return the scores of each query's passages in a window. Scores in the window's file are reused."""
    job, scores_path, query_groups = task
    group_sizes = [len(passage_ids) for _, passage_ids in query_groups]

    def is_complete(saved_scores: list[list[float]]) -> bool:
        return [len(group_scores) for group_scores in saved_scores] == group_sizes

    def compute_scores() -> list[list[float]]:
        rounded_scores = []
        for group_scores in score_groups(job, device, query_groups):
            # Nine digits identify a 32-bit number.
            rounded_scores.append([float(f"{score:.9g}") for score in group_scores])
        return rounded_scores

    return resume_or_run(scores_path, list[list[float]], is_complete, compute_scores)


@LastResult
def _open_encoders(reranker: OpenReranker, device: str) -> tuple[TextEncoder, TextEncoder]:
    """Return the query encoder and the passage encoder of a dual-encoder. A process opens the model once."""
    work = reranker.work
    model = open_encoder(reranker.settings, device, work.dtype)
    query_encoder = TextEncoder(model, "query", work.batch_tokens, work.tokenizers)
    passage_encoder = TextEncoder(model, "document", work.batch_tokens, work.tokenizers)
    return query_encoder, passage_encoder


def query_similarities(job: PairJob, device: str, query_groups: Sequence[Group]) -> list[list[float]]:
    """Return the similarity (cosine or dot product) of each query to each of its passages, by a dual-encoder.

    The corpus must have every passage. A passage of several queries is encoded once.
    """
    query_encoder, passage_encoder = _open_encoders(job.reranker, device)
    passages = passages_of(job)
    query_texts = [query_text for query_text, passage_ids in query_groups if passage_ids]
    if not query_texts:
        return [[] for _ in query_groups]

    # Number the distinct passages, and encode each of them once.
    passage_numbers: dict[str, int] = {}
    for _, passage_ids in query_groups:
        for passage_id in passage_ids:
            passage_numbers.setdefault(passage_id, len(passage_numbers))
    passage_texts = passages.texts(passages.rows(list(passage_numbers)).tolist())
    passage_vectors = passage_encoder.encode(passage_texts).astype(np.float32)
    # Queries without passages are not encoded, so the loop below takes the next vector for each other query.
    query_vectors = iter(query_encoder.encode(query_texts).astype(np.float32))

    similarities_by_group: list[list[float]] = []
    for _, passage_ids in query_groups:
        if passage_ids:
            group_vectors = passage_vectors[[passage_numbers[passage_id] for passage_id in passage_ids]]
            similarities_by_group.append((group_vectors @ next(query_vectors)).tolist())
        else:
            similarities_by_group.append([])
    return similarities_by_group
