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
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sentence_transformers import CrossEncoder

from baselines.core.passages import Passages, open_passages
from baselines.core.settings import NO_OPTIONS, ModelOptions, ModelSettings, Overrides
from baselines.retrieve.devices import Work, moved, over_devices
from baselines.retrieve.encoder import CrossScorer, TextEncoder
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_kinds import kind_of_reranker
from baselines.retrieve.models import described, expect_no, open_cross, open_encoder
from baselines.retrieve.reading_checks import check_reading, check_room_for_texts
from baselines.retrieve.vector_index import resumed
from builders.core.endpoint import Endpoint
from builders.core.errors import InputError, log
from builders.core.jobs import LastResult
from builders.core.progress import progress
from builders.core.reply_limits import in_daemon_threads
from builders.core.shares import report_share
from builders.store.reader import Release, open_release

# The prompt of Qwen3-Reranker. Sources: the model card, and vllm-project/vllm-ascend,
# docs/source/tutorials/models/Qwen3_reranker.md.
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_FORM = '"<Instruct>: " ~ instruct ~ "\\n<Query>: " ~ query ~ "\\n<Document>: " ~ document'
SHOWN, STEP = 20, 10  # passages per window, and per step of the window
_ORDER = "按照与问题的相关程度，把下面的段落从最相关到最不相关排序：能直接、完整回答问题的排在最前面。"


@dataclass(frozen=True)
class Reranker(abc.ABC):
    """A model that scores (query, passage) pairs. A higher score means a better answer."""

    settings: ModelSettings
    work: Work
    kind: ClassVar[str]

    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """Return everything that affects the scores, as JSON values. Open a local model for its fingerprint."""

    @abc.abstractmethod
    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        """Return a finite score of every (query, passage), in the pairs' order. Compare scores only within a query.

        The pairs of a query must be adjacent and in the order of the run.
        """


class Cross(Reranker):
    """A cross-encoder. Its scores are logits, which rank passages as ``CrossEncoder.predict`` does."""

    kind = "cross"

    def open_model(self) -> CrossEncoder:
        return open_cross(self.settings)

    def about(self) -> dict[str, Any]:
        model = self.open_model()
        template = {"template": model[0].processor.chat_template} if self.kind == "llm" else {}
        return {"kind": self.kind, **described(self.settings, model, self.work.dtype), **template}

    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        return _scorer(self, device).scores(pairs).tolist() if pairs else []


@LastResult
def _scorer(reranker: Cross, device: str) -> CrossScorer:
    model = moved(reranker.open_model(), device, reranker.work.dtype)
    return CrossScorer(model, tokens=reranker.work.batch_tokens, tokenizers=reranker.work.tokenizers)


class LanguageModel(Cross):
    """A language model. A score is the logit of yes minus the logit of no."""

    kind = "llm"

    def open_model(self) -> CrossEncoder:
        model = super().open_model()
        reader: Any = model[0]
        template, unknown = reader.processor.chat_template, reader.tokenizer.unk_token_id
        if not isinstance(template, str):
            raise InputError(
                "has no chat template; expected an instruction-tuned language model", path=self.settings.name
            )
        for name in ("true_token_id", "false_token_id"):
            if getattr(model[1], name, None) in (None, unknown):
                raise InputError("has no token for yes or for no", path=self.settings.name)
        if set(re.findall(r"""['"](query|document)['"]""", template)) < {"query", "document"}:
            for with_system in (True, False):  # some chat templates refuse a system message
                reader.processor.chat_template = asking(template, with_system)
                failure = reader.input_formatter.pair_roles_failure({})
                if failure is None:
                    break
            else:
                raise InputError(f"its chat template cannot be used for pairs ({failure})", path=self.settings.name)
        check_room_for_texts(model, self.settings.name)
        check_reading(model, self.settings)
        return model


def asking(template: str, with_system: bool = True) -> str:
    """Convert a chat template with the usual roles to a template with the roles query and document.

    ``_SYSTEM`` is a system message if ``with_system`` is true, else the beginning of the user's message.
    """
    of = '(messages | selectattr("role", "equalto", "{}") | map(attribute="content") | list + [{}]) | first'.format
    frame = json.dumps(_SYSTEM, ensure_ascii=False)
    system = f'{{"role": "system", "content": {frame}}}, ' if with_system else ""
    form = _FORM if with_system else f'{frame} ~ "\\n\\n" ~ {_FORM}'
    return (
        f"{{%- set query = {of('query', '')} -%}}"
        f"{{%- set document = {of('document', '')} -%}}"
        f"{{%- set instruct = {of('system', json.dumps(_INSTRUCTION))} -%}}"
        f'{{%- set messages = [{system}{{"role": "user", "content": {form}}}] -%}}'
        "{%- set add_generation_prompt = true -%}{%- set enable_thinking = false %}"
        f"{template}"
    )


class Listwise(Reranker):
    """A model behind an endpoint, which sorts the passages of a query."""

    kind = "listwise"

    def about(self) -> dict[str, Any]:
        expect_no(self.settings, "a model behind an endpoint", "revision", "max_length", "trust_remote_code")
        about = {"kind": self.kind, "name": self.settings.name, "window": [SHOWN, STEP]}
        return about | {"asked": order_prompt("", [""], self.settings.query_prompt or "")}

    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        endpoint = Endpoint(self.settings.name, otherwise="")
        groups = [
            (query, [text for _, text in own]) for query, own in itertools.groupby(pairs, key=lambda pair: pair[0])
        ]
        orders: dict[int, list[int]] = {}
        for group_number, order in in_daemon_threads(
            lambda group: self._ranked(endpoint, *group), groups, self.work.parallel
        ):
            orders[group_number] = order
            report_share(len(orders) / len(groups))
        scores: list[float] = []
        for group_number in range(len(groups)):
            places = {number: place for place, number in enumerate(orders[group_number])}
            scores += [float(len(places) - places[number]) for number in range(len(places))]
        return scores

    def _ranked(self, endpoint: Endpoint, query: str, passages: list[str]) -> list[int]:
        order, end = list(range(len(passages))), len(passages)
        while len(passages) > 1:
            begin = max(0, end - SHOWN)
            window = order[begin:end]
            prompt = order_prompt(query, [passages[number] for number in window], self.settings.query_prompt or "")
            answered = order_in(endpoint.answer(prompt), len(window))
            if not answered:
                log.warning("the answer to the query %r names no passage; the order is not changed", query)
            order[begin:end] = [window[place] for place in answered] or window
            if begin == 0:
                break
            end -= STEP
        return order


def order_prompt(query: str, passages: Sequence[str], instruction: str = "") -> str:
    """Return the prompt that asks for the best order of passages. The passages are numbered from 1."""
    shown = "\n".join(f"[{n}] {' '.join(text.split())[:1_000]}" for n, text in enumerate(passages, 1))
    return (
        f"{instruction or _ORDER}\n\n问题：{query}\n\n段落：\n{shown}\n\n"
        f"共 {len(passages)} 个段落，每个编号只写一次，格式如 [2] > [1] > [3]。只写排序结果，不要解释。"
    )


def order_in(answer: str, count: int) -> list[int]:
    """Return the order of ``count`` passages in an answer, as numbers from 0. [] if the answer names no passage."""
    answer = re.sub(r"(?s)<think>.*?</think>", "", answer)  # the thoughts of a reasoning model
    numbers = re.findall(r"\[\s*(\d{1,4})\s*\]", answer) or re.findall(r"\d{1,4}", answer)
    found = list(dict.fromkeys(int(number) - 1 for number in numbers if 1 <= int(number) <= count))
    return found and found + [number for number in range(count) if number not in found]


Group = tuple[str, list[str]]  # text of a query, ids of its passages
WINDOW = 256  # queries whose scores are saved in one file
ASKED = 16  # WINDOW for an endpoint; small, because an interruption loses paid answers


def open_reranker(settings: ModelSettings, work: Work, kind: str = "") -> Reranker:
    """Return a model's re-ranker. The model's files determine an empty ``kind``. Raises :class:`InputError`."""
    kinds: dict[str, type[Cross | Listwise]] = {"cross": Cross, "llm": LanguageModel, "listwise": Listwise}
    if (kind := kind or kind_of_reranker(settings)) not in kinds:
        raise InputError(f"--kind {kind}: expected {', '.join(kinds)}, or a kind that `run` searches by")
    return kinds[kind](settings, work)


@dataclass(frozen=True)
class PairJob:
    """A re-ranker, and the config ``corpus`` and the split of the passages to score. Worker processes get the job."""

    release: Path
    corpus: str
    split: str
    reranker: Reranker


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
    is_behind_endpoint = options.kind == "listwise"
    settings = ModelSettings(
        model,
        revision=options.revision if is_behind_endpoint else commit_of(model, options.revision),
        max_length=options.max_length,
        trust_remote_code=options.trust_remote_code,
        **options.overrides(),
    )
    expect_no(settings, "a model of pairs", *(name for name in Overrides.__struct_fields__ if name != "query_prompt"))
    return PairJob(release.path, corpus, split, open_reranker(settings, work, options.kind or ""))


def endpoint_work(parallel: int = 4) -> Work:
    """Return the work of a model behind an endpoint, which needs no device of this machine.

    ``parallel`` is the number of simultaneous requests.
    """
    return Work(("cpu",), "fp32", parallel=parallel)


def _passages(job: PairJob) -> Passages:
    return open_passages(open_release(job.release), job.corpus, split=job.split)


def score_groups(job: PairJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """Return the scores of each query's passages, in order. Raises :class:`InputError` for an unknown passage."""
    passages = _passages(job)
    wanted = [corpus for _, ids in groups for corpus in ids]
    rows = passages.rows(wanted)
    if (rows < 0).any():
        lacking = wanted[int(rows.argmin())]
        raise InputError(f"{job.corpus}/{job.split} has no {lacking!r}; build the release again", path=job.release)
    texts = iter(passages.texts(rows.tolist()))
    pairs = [(query, next(texts)) for query, ids in groups for _ in ids]
    scores = iter(job.reranker.score(pairs, device))
    return [[next(scores) for _ in ids] for _, ids in groups]


def score_windows(
    job: PairJob, groups: Sequence[Group], work: Path, label: str, window: int | None = None
) -> list[list[float]]:
    """Call :func:`score_groups` on all devices of the job, for ``window`` queries at a time (default: ``WINDOW``).

    The scores of each window are saved in the folder ``work``. A folder serves only one combination of job, groups and
    window.
    """
    window = window or WINDOW
    starts = enumerate(range(0, len(groups), window))
    tasks = [(job, work / f"window-{n:06d}.json", groups[start : start + window]) for n, start in starts]
    # Windows that an interrupted call has scored are read quickly, so they are no measure of the speed.
    left = [0 if path.exists() else _pair_count(some_groups) for _, path, some_groups in tasks]
    total = _pair_count(groups)
    scored = over_devices(_score_window, tasks, job.reranker.work.devices)
    scores: list[list[float]] = []
    try:
        with progress(total=total, unit="pair", label=label, done=total - sum(left)) as bar:
            for window_scores in bar.follow(scored, left):
                scores += window_scores
    finally:
        _scorer.cache_clear()
    return scores


def _pair_count(groups: Sequence[Group]) -> int:
    return sum(len(ids) for _, ids in groups)


def _score_window(task: tuple[PairJob, Path, Sequence[Group]], device: str) -> list[list[float]]:
    """Return the scores of each query's passages in a window. Scores in the window's file are reused."""
    job, path, groups = task
    return resumed(
        path,
        list[list[float]],
        lambda scores: [len(own) for own in scores] == [len(ids) for _, ids in groups],
        # Nine digits identify a 32-bit number.
        lambda: [[float(f"{score:.9g}") for score in own] for own in score_groups(job, device, groups)],
    )


@LastResult
def _encoders(reranker: Reranker, device: str) -> list[TextEncoder]:
    """Return the query encoder and the passage encoder of a dual-encoder. A process opens the model once."""
    model, work = open_encoder(reranker.settings, device, reranker.work.dtype), reranker.work
    return [TextEncoder(model, task, work.batch_tokens, work.tokenizers) for task in ("query", "document")]


def similarities(job: PairJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """Return the similarity (cosine or dot product) of each query to each of its passages, by a dual-encoder.

    The corpus must have every passage. A passage of several queries is encoded once.
    """
    of_queries, of_passages = _encoders(job.reranker, device)
    passages = _passages(job)
    asked = [(text, ids) for text, ids in groups if ids]
    if not asked:
        return [[] for _ in groups]
    every = {corpus: number for number, corpus in enumerate(dict.fromkeys(c for _, ids in asked for c in ids))}
    vectors = of_passages.encode(passages.texts(passages.rows(list(every)).tolist())).astype(np.float32)
    queries = iter(of_queries.encode([text for text, _ in asked]).astype(np.float32))
    return [(vectors[[every[c] for c in ids]] @ next(queries)).tolist() if ids else [] for _, ids in groups]
