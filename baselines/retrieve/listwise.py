"""A language model behind an endpoint that is shown several passages at once and says their order.

The way of RankGPT (Sun et al., 2023, arXiv 2304.09542): a window of 20 passages goes over the ranking from its end to
its beginning, 10 further each time, so that what is best may rise all the way. What an answer leaves out stays behind
what it names, in the order that it had; of an answer that names nothing, the order stays.

The endpoint is any that speaks OpenAI's chat API, by OPENAI_BASE_URL and OPENAI_API_KEY: queries and passages are sent
there. The scores are places, counted from the end: they can be compared within a query alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from baselines.retrieve.devices import Work
from baselines.retrieve.models import expect_no
from baselines.retrieve.settings import ModelSettings
from builders.annotate.endpoint import Endpoint
from builders.common.command import log

WINDOW, STEP = 20, 10
_CHARACTERS = 1_000  # of a passage that are shown
_NUMBER = re.compile(r"\[\s*(\d{1,4})\s*\]")
_BARE = re.compile(r"\d{1,4}")
_INSTRUCTION = "按照与问题的相关程度，把下面的段落从最相关到最不相关排序：能直接、完整回答问题的排在最前面。"


def prompt_of(query: str, passages: Sequence[str], instruction: str = "") -> str:
    """The question to the model about some passages, which are numbered from 1."""
    shown = "\n".join(f"[{n}] {' '.join(text.split())[:_CHARACTERS]}" for n, text in enumerate(passages, 1))
    return (
        f"{instruction or _INSTRUCTION}\n\n问题：{query}\n\n段落：\n{shown}\n\n"
        f"共 {len(passages)} 个段落，每个编号只写一次，格式如 [2] > [1] > [3]。只写排序结果，不要解释。"
    )


def order_in(answer: str, count: int) -> list[int]:
    """The order that an answer gives ``count`` passages, as numbers from 0; empty where it names none of them."""
    answer = re.sub(r"(?s)<think>.*?</think>", "", answer)  # a model that thinks aloud
    named = [int(number) - 1 for number in _NUMBER.findall(answer) or _BARE.findall(answer)]
    found = list(dict.fromkeys(number for number in named if 0 <= number < count))
    return found and found + [number for number in range(count) if number not in found]


class Listwise:
    """A model behind an endpoint. The pairs of a query are given together, best first."""

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        expect_no(settings, "a model behind an endpoint", "revision", "max_length", "trust_remote_code")
        self._settings, self._parallel = settings, work.parallel
        self._endpoint = Endpoint(settings.name, otherwise="")

    def about(self) -> dict[str, Any]:
        asked = prompt_of("", [""], self._settings.query_prompt or "")
        return {"kind": "listwise", "name": self._settings.name, "window": [WINDOW, STEP], "asked": asked}

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        groups = [
            (query, [text for _, text in own]) for query, own in itertools.groupby(pairs, key=lambda pair: pair[0])
        ]
        scores: list[float] = []
        with ThreadPoolExecutor(self._parallel) as pool:
            try:
                for order in [pool.submit(self._ranked, *group) for group in groups]:
                    places = {number: place for place, number in enumerate(order.result())}
                    scores += [float(len(places) - places[number]) for number in range(len(places))]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return scores

    def _ranked(self, query: str, passages: list[str]) -> list[int]:
        """The order of a query's passages, as their numbers."""
        order, end = list(range(len(passages))), len(passages)
        while len(passages) > 1:
            begin = max(0, end - WINDOW)
            window = order[begin:end]
            prompt = prompt_of(query, [passages[number] for number in window], self._settings.query_prompt or "")
            said = order_in(self._endpoint.answer(prompt), len(window))
            if not said:
                log.warning("an answer about %r names no passage: their order stays", query)
            order[begin:end] = [window[place] for place in said] or window
            if begin == 0:
                break
            end -= STEP
        return order
