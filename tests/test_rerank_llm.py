"""Re-ranking by language models: asked for yes or no, or, behind an endpoint, for an order."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_server import Chat, chat
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5
from tiny_kinds import write_language_model
from tiny_models import write_cross
from transformers import AutoModelForCausalLM, AutoTokenizer

from baselines.retrieve import rerankers, scoring
from builders.store.runs import Hit, read_run, write_run

BY_ID = {md5(text): text for text in [*TEXTS, *QUESTIONS["train"]]}
ASKED = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {passage}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
WEB = "Given a web search query, retrieve relevant passages that answer the query"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    make_release(folder / "release")
    write_language_model(folder / "llm")
    rng = random.Random(4)
    rankings = [
        (md5(question), [(md5(text), 1 / n) for n, text in enumerate(rng.sample(TEXTS, 6), 1)])
        for question in QUESTIONS["train"]
    ]
    write_run(folder / "first.run", rankings)
    return folder


def rerank(world: Path, out: Path, model: object, *words: object, code: int = 0) -> Done:
    first = ["--release", world / "release", "--split", "train", "--run", world / "first.run", "--out", out]
    return run("baselines", "rerank", *first, "--model", model, *words, code=code)


def log_odds(folder: Path, prompts: list[str]) -> list[float]:
    """Of yes against no after each prompt alone: nothing is padded."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    with torch.inference_mode():
        tokens = [torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)]) for prompt in prompts]
        logits = [model(each).logits[0, -1] for each in tokens]
    return [float(each[yes] - each[no]) for each in logits]


def expect(folder: Path, found: dict[str, list[Hit]], prompt: str, **more: str) -> None:
    query, hits = next(iter(found.items()))
    prompts = [prompt.format(query=BY_ID[query], passage=BY_ID[corpus], **more) for corpus, _ in hits]
    scores = [score for _, score in hits]
    np.testing.assert_allclose(scores, log_odds(folder, prompts), atol=1e-3)
    assert len(set(scores)) == len(TEXTS) and scores == sorted(scores, reverse=True)


def test_a_language_model_is_asked_for_yes_or_no(world: Path, tmp_path: Path) -> None:
    rerank(world, tmp_path / "a.run", world / "llm", "--dtype", "fp32")
    expect(world / "llm", read_run(tmp_path / "a.run").hits, ASKED, instruct=WEB)
    rerank(world, tmp_path / "b.run", world / "llm", "--dtype", "fp32", "--prompt", "找出能回答问题的段落")
    expect(world / "llm", read_run(tmp_path / "b.run").hits, ASKED, instruct="找出能回答问题的段落")


def test_a_template_of_queries_and_documents_is_the_models_own(world: Path, tmp_path: Path) -> None:
    own = "".join(
        f"{name}={{{{ messages | selectattr('role', 'eq', '{name}') | map(attribute='content') | first }}}};"
        for name in ("query", "document")
    )
    folder = write_language_model(tmp_path / "llm", own)
    rerank(world, tmp_path / "a.run", folder, "--dtype", "fp32")
    expect(folder, read_run(tmp_path / "a.run").hits, "query={query};document={passage};")


def test_a_model_that_knows_no_system_is_told_in_the_question(world: Path, tmp_path: Path) -> None:
    own = (
        "{%- for message in messages -%}{%- if message.role != 'user' -%}{{ raise_exception('no such role') }}"
        "{%- endif -%}U: {{ message.content }}\nA: {%- endfor -%}"
    )
    folder = write_language_model(tmp_path / "llm", own)
    rerank(world, tmp_path / "a.run", folder, "--dtype", "fp32")
    system = re.search(r"system\n(.*)<\|im_end\|>\n<\|im_start\|>user", ASKED)
    assert system
    prompt = f"U: {system[1]}\n\n<Instruct>: {WEB}\n<Query>: {{query}}\n<Document>: {{passage}}\nA:"
    expect(folder, read_run(tmp_path / "a.run").hits, prompt)


def test_what_cannot_be_asked_is_one_error(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_language_model(tmp_path / "base", None)
    assert "has no chat template" in rerank(world, tmp_path / "a.run", base, code=1).stderr
    cross = write_cross(tmp_path / "cross")
    assert "has no chat template" in rerank(world, tmp_path / "a.run", cross, "--kind", "llm", code=1).error
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    error = rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", code=1).error
    assert error == "expected an address in OPENAI_BASE_URL (http://localhost:8000/v1)"
    error = rerank(world, tmp_path / "a.run", "m", "--kind", "listwise", "--max-length", "9", code=1).error
    assert error == "m: max_length: a model behind an endpoint has none"
    assert not (tmp_path / "a.run").exists()


def shown(prompt: str) -> list[str]:
    """The passages of a question, in their order."""
    return re.findall(r"(?m)^\[\d+\] (.*)$", prompt)


def by_size(prompt: str) -> str:
    """A model that likes long passages."""
    passages = shown(prompt)
    order = sorted(range(len(passages)), key=lambda number: (-len(passages[number]), passages[number]))
    return " > ".join(f"[{number + 1}]" for number in order)


@pytest.fixture
def ask(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[list[str]], Chat]]:
    """Re-rank by a model that answers so; the texts of each query's passages, best first, and the server."""

    def call(answer: Callable[[str], str | int], *words: object) -> tuple[list[list[str]], Chat]:
        with chat(answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", *words)
        found = read_run(tmp_path / "a.run")
        assert {tuple(score for _, score in hits) for hits in found.hits.values()} == {(6.0, 5.0, 4.0, 3.0, 2.0, 1.0)}
        return [[BY_ID[corpus] for corpus in ids] for ids in found.rankings.values()], server

    return call


BEST = sorted(TEXTS, key=lambda text: (-len(text), text))


def test_a_model_behind_an_endpoint_says_the_order(
    world: Path, ask: Callable[..., tuple[list[list[str]], Chat]]
) -> None:
    found, server = ask(by_size, "--prompt", "长的在前")
    assert found == [BEST] * 4
    given = read_run(world / "first.run").rankings
    assert sorted(map(shown, server.prompts)) == sorted([BY_ID[corpus] for corpus in ids] for ids in given.values())
    assert all(prompt.startswith("长的在前\n\n问题：") for prompt in server.prompts)
    assert {sent["model"] for sent, _ in server.asked} == {"some-model"}


def test_windows_carry_the_best_to_the_top(
    ask: Callable[..., tuple[list[list[str]], Chat]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerankers, "WINDOW", 4)
    monkeypatch.setattr(rerankers, "STEP", 2)
    found, server = ask(by_size)
    assert [texts[:2] for texts in found] == [BEST[:2]] * 4
    assert [len(shown(prompt)) for prompt in server.prompts] == [4] * 8


@pytest.mark.parametrize(
    ("answer", "order"),
    [
        ("[3] > [1]", [2, 0, 1, 3, 4, 5]),
        ("<think>[6] is long</think>\n[2] > [9] > [2] > [0] > [5]", [1, 4, 0, 2, 3, 5]),
        ("3, 2", [2, 1, 0, 3, 4, 5]),
        ("我不知道", [0, 1, 2, 3, 4, 5]),
        ("", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_what_an_answer_leaves_out_keeps_its_order(
    world: Path, ask: Callable[..., tuple[list[list[str]], Chat]], answer: str, order: list[int]
) -> None:
    found, _ = ask(lambda _: answer)
    for texts, ids in zip(found, read_run(world / "first.run").rankings.values(), strict=True):
        assert texts == [BY_ID[ids[number]] for number in order]


def test_what_was_answered_is_not_asked_again(
    world: Path,
    tmp_path: Path,
    ask: Callable[..., tuple[list[list[str]], Chat]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "ASKED", 1)
    last = QUESTIONS["train"][-1]
    with chat(lambda prompt: 500 if last in prompt else by_size(prompt)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        failed = rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", code=1)
        assert "answered 500" in failed.stderr
    found, server = ask(by_size)
    assert found == [BEST] * 4 and len(server.asked) == 1
