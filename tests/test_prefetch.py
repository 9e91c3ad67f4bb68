"""Prefetching tokens by a thread or by processes: the library's tokens, in order, in bounded memory."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from releases import TEXTS
from tiny_models import write_dual

from baselines.retrieve.encoder import Encoder, Prefetcher
from baselines.retrieve.models import open_encoder
from baselines.retrieve.settings import ModelSettings
from builders.core.jobs import WorkerDied


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual", router=True, prompts={"query": "问：", "document": "煮饺子："})
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    """A prefetcher with two processes, which take seconds to start."""
    return Encoder(open_encoder(ModelSettings(str(folder / "dual"))), "document", 300, 2)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.retrieve.encoder.MANY", 1)


def workers() -> set[int | None]:
    return {worker.pid for worker in multiprocessing.active_children()}


def test_processes_give_the_bits_that_a_thread_gives_and_are_kept(encoder: Encoder) -> None:
    texts = [*TEXTS, *("".join(TEXTS)[place : place + 90] for place in range(60))]
    expected = Encoder(encoder.model, "document", 300).encode(texts)
    assert (encoder.encode(texts) == expected).all()
    running = workers()
    assert (encoder.encode(texts[::-1]) == expected[::-1]).all()  # the next chunk, by the same processes
    assert len(running) >= 2 and workers() == running


@pytest.mark.parametrize(("kind", "most"), [("thread", 8), ("processes", 5)])
def test_a_bounded_number_of_batches_is_tokenised_ahead(encoder: Encoder, kind: str, most: int) -> None:
    taken: list[int] = []

    def batches() -> Iterator[list[str]]:
        for number in range(40):
            taken.append(number)
            yield [TEXTS[number % len(TEXTS)]]

    ahead = encoder._prefetcher if kind == "processes" else Prefetcher(encoder.model, {"task": "document"})
    for number, found in enumerate(ahead(batches())):
        assert found.keys() == ahead.tokens([TEXTS[0]]).keys()
        assert torch.equal(found["input_ids"], ahead.tokens([TEXTS[number % len(TEXTS)]])["input_ids"])
        assert len(taken) - number <= most
    assert len(taken) == 40


def test_a_killed_tokenizer_is_a_worker_that_died(encoder: Encoder) -> None:
    ahead = encoder._prefetcher(iter([text] for text in TEXTS * 50))
    next(ahead)
    for process in list(encoder._prefetcher._pool._processes):  # an idle process would not be noticed
        os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(ahead)
