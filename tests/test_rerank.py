"""Re-ranking by cross-encoders and language models: scores, queries and interruptions."""

import contextlib
import json
import math
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Done, error_of, run
from loaded import Loaded
from loopback import Chat
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import CrossEncoder
from tiny_kinds import write_language_model, write_multi_vector, write_sparse, write_static
from tiny_models import write_cross, write_dual
from transformers import AutoModelForCausalLM, AutoTokenizer

from baselines.retrieve import rerankers, vector_index
from builders.store.runs import Hit, read_run, write_run

Ask = Callable[..., tuple[list[list[str]], Chat]]
BY_ID = {md5(text): text for text in [*TEXTS, *(q for questions in QUESTIONS.values() for q in questions)]}
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    make_release(folder / "release")
    write_cross(folder / "cross")
    write_cross(folder / "two", labels=2)
    write_cross(folder / "three", labels=3)
    write_dual(folder / "dual", prompts={"query": "问", "document": "文"})
    (folder / "empty").mkdir()
    write_language_model(folder / "llm")
    rng = random.Random(4)
    questions = [md5(question) for question in reversed(QUESTIONS["train"])]  # not the release's order
    rankings = [(query, [(md5(text), 1 / n) for n, text in enumerate(rng.sample(TEXTS, 6), 1)]) for query in questions]
    write_run(folder / "first.run", rankings)
    return folder


def rerank(world: Path, out: Path, model: object, *words: object, code: int | None = 0) -> Done:
    first = ["--release", world / "release", "--split", "train", "--run", world / "first.run", "--out", out]
    return run("baselines", "rerank", *first, "--model", model, *words, code=code)


def run_rerank(world: Path, out: Path, *words: str | Path) -> int:
    return rerank(world, out, world / "cross", *words, code=None).code


def test_scores_are_the_cross_encoders_in_the_runs_order(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--top-k", "4") == 0
    given, found = read_run(world / "first.run"), read_run(tmp_path / "a.run")
    assert list(found.hits) == list(given.hits)
    model = CrossEncoder(str(world / "cross"), device="cpu")
    for query, hits in found.hits.items():
        assert {corpus for corpus, _ in hits[:4]} == set(given.rankings[query][:4])
        assert [corpus for corpus, _ in hits[4:]] == given.rankings[query][4:]  # behind the others, in their old order
        assert hits[3][1] > hits[4][1] > hits[5][1] > hits[3][1] - 1e-4
        hits = hits[:4]
        pairs = [(BY_ID[query], BY_ID[corpus]) for corpus, _ in hits]
        scores = np.array([score for _, score in hits])
        np.testing.assert_allclose(scores, model.predict(pairs, activation_fn=torch.nn.Identity()), atol=1e-5)
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), model.predict(pairs), atol=1e-5)
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)


def test_batches_and_processes_change_nothing(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_rerank(world, tmp_path / "a.run") == 0
    monkeypatch.setattr(rerankers, "QUERIES_PER_FILE", 3)
    assert run_rerank(world, tmp_path / "b.run", "--batch-tokens", "50", "--device", "cpu,cpu") == 0
    one, other = read_run(tmp_path / "a.run"), read_run(tmp_path / "b.run")
    assert one.rankings == other.rankings
    for query, hits in one.hits.items():
        np.testing.assert_allclose([s for _, s in hits], [s for _, s in other.hits[query]], atol=1e-5)


@contextlib.contextmanager
def scoring_noted(scored: list[str], most: float = math.inf) -> Iterator[None]:
    """Add every scored query to ``scored``. Raise Ctrl-C after ``most`` queries."""
    score = rerankers.score_groups

    def noted(job: Any, device: str, groups: Any) -> Any:
        if len(scored) >= most:
            raise KeyboardInterrupt
        scored.append(groups[0][0])
        return score(job, device, groups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "QUERIES_PER_FILE", 1)
        patch.setattr(rerankers, "score_groups", noted)
        yield


def test_an_interrupted_run_is_resumed(world: Path, tmp_path: Path) -> None:
    scored: list[str] = []
    with scoring_noted(scored, most=2):
        assert run_rerank(world, tmp_path / "a.run") == 130
    assert not (tmp_path / "a.run").exists()
    with scoring_noted(scored):
        assert run_rerank(world, tmp_path / "a.run") == 0
    assert scored == [BY_ID[query] for query in read_run(world / "first.run").hits]  # each once
    with scoring_noted([]):
        assert run_rerank(world, tmp_path / "b.run") == 0
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    assert len(list(tmp_path.iterdir())) == 7  # two runs, their manifests and records, the cache


def test_two_outputs_rank_by_the_probability_of_the_second(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--model", world / "two") == 0
    model = CrossEncoder(str(world / "two"), device="cpu")
    for query, hits in read_run(tmp_path / "a.run").hits.items():
        probability = model.predict([(BY_ID[query], BY_ID[corpus]) for corpus, _ in hits], apply_softmax=True)[:, 1]
        assert probability.tolist() == sorted(probability.tolist(), reverse=True)
        np.testing.assert_allclose([1 / (1 + np.exp(-score)) for _, score in hits], probability, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("QUERY Q0 unknown 1 1.0 t", [], "has a passage 'unknown' that the release's corpus lacks"),
        ("who Q0 PASSAGE 1 1.0 t", [], "has a query 'who' that queries/train lacks"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--model", "WORLD/three"], "returns 3 scores per pair"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--kind", "dense"], "is a CrossEncoder; expected a SentenceTransformer"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--pooling", "cls"], "a model of pairs has no setting pooling"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--family", "bge"], "--family bge: a model of kind cross has no family"),
        ("QUERY Q0 unknown 1 1.0 t", ["--model", "WORLD/dual"], "has a passage 'unknown' that the release's corpus"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--model", "WORLD/empty"], "WORLD/empty: cannot be opened"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--out", "RUN"], "is both the run to re-rank and --out"),
    ],
)
def test_bad_input_is_one_error(world: Path, tmp_path: Path, line: str, words: list[str], message: str) -> None:
    bad = tmp_path / "bad.run"
    bad.write_text(line.replace("QUERY", md5(QUESTIONS["train"][0])).replace("PASSAGE", md5(TEXTS[0])) + "\n")
    words = [word.replace("WORLD", str(world)).replace("RUN", str(bad)) for word in words]
    done = rerank(world, tmp_path / "a.run", world / "cross", "--run", bad, *words, code=1)
    assert message.replace("WORLD", str(world)) in error_of(done)
    assert not (tmp_path / "a.run").exists()


ASKED = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {passage}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
WEB = "Given a web search query, retrieve relevant passages that answer the query"


def log_odds(folder: Path, prompts: list[str]) -> list[float]:
    """Return the scores of yes against no after each prompt, one prompt at a time without padding."""
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


def test_without_a_system_role_the_question_has_the_instruction(world: Path, tmp_path: Path) -> None:
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


def shown(prompt: str) -> list[str]:
    return re.findall(r"(?m)^\[\d+\] (.*)$", prompt)


def by_size(prompt: str) -> str:
    passages = shown(prompt)
    order = sorted(range(len(passages)), key=lambda number: (-len(passages[number]), passages[number]))
    return " > ".join(f"[{number + 1}]" for number in order)


@pytest.fixture
def ask(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Re-rank by a model with this answer. Return the ranked texts of each query, and the server."""

    def call(answer: Callable[[str], str | int], *words: object) -> tuple[list[list[str]], Chat]:
        with Chat(answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", *words)
        found = read_run(tmp_path / "a.run")
        assert {tuple(score for _, score in hits) for hits in found.hits.values()} == {(6.0, 5.0, 4.0, 3.0, 2.0, 1.0)}
        return [[BY_ID[corpus] for corpus in ids] for ids in found.rankings.values()], server

    return call


BEST = sorted(TEXTS, key=lambda text: (-len(text), text))


@pytest.mark.slow
def test_a_model_behind_an_endpoint_orders_the_passages(world: Path, ask: Ask) -> None:
    found, server = ask(by_size, "--prompt", "长的在前")
    assert found == [BEST] * 4
    given = read_run(world / "first.run").rankings
    assert sorted(map(shown, server.prompts)) == sorted([BY_ID[corpus] for corpus in ids] for ids in given.values())
    assert all(prompt.startswith("长的在前\n\n问题：") for prompt in server.prompts)
    assert {sent["model"] for sent, _ in server.asked} == {"some-model"}


def test_windows_carry_the_best_to_the_top(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerankers, "PASSAGES_PER_WINDOW", 4)
    monkeypatch.setattr(rerankers, "WINDOW_STEP", 2)
    found, server = ask(by_size)
    assert [texts[:2] for texts in found] == [BEST[:2]] * 4
    assert [len(shown(prompt)) for prompt in server.prompts] == [4] * 8


@pytest.mark.parametrize(
    ("answer", "order"),
    [
        ("[3] > [1]", [2, 0, 1, 3, 4, 5]),
        ("<think>[6] is long</think>\n[2] > [9] > [2] > [0] > [5]", [1, 4, 0, 2, 3, 5]),
        ("我不知道", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_passages_that_an_answer_lacks_keep_their_order(world: Path, ask: Ask, answer: str, order: list[int]) -> None:
    found, _ = ask(lambda _: answer)
    for texts, ids in zip(found, read_run(world / "first.run").rankings.values(), strict=True):
        assert texts == [BY_ID[ids[number]] for number in order]


def test_no_question_is_asked_again(world: Path, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerankers, "ENDPOINT_QUERIES_PER_FILE", 1)
    last = QUESTIONS["train"][0]
    with Chat(lambda prompt: 500 if last in prompt else by_size(prompt)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        failed = rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", code=1)
        assert "answered 500" in failed.stderr
    found, server = ask(by_size)
    assert found == [BEST] * 4 and len(server.asked) == 1


ENCODERS: dict[str, Callable[[Path], Path]] = {
    "dense": lambda folder: write_dual(folder, prompts={"query": "问", "document": "文"}),
    "static": write_static,
    "sparse": write_sparse,
    "multi-vector": write_multi_vector,
}


@contextlib.contextmanager
def encodings_noted(encoded: list[str], most: float = math.inf) -> Iterator[None]:
    """Add every encoded passage to ``encoded``. Raise Ctrl-C before more than ``most`` passages are encoded."""
    texts_of = vector_index._read_texts

    def noted(*given: Any) -> list[str]:
        texts = texts_of(*given)
        if len(encoded) + len(texts) > most:
            raise KeyboardInterrupt
        encoded.extend(texts)
        return texts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_index, "ROWS_ON_CPU", 16)  # two passages in a chunk of candidates
        patch.setattr(vector_index, "_read_texts", noted)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_scores_candidates_as_it_scores_the_collection(world: Path, tmp_path: Path, kind: str) -> None:
    model, given, encoded = ENCODERS[kind](tmp_path / "model"), read_run(world / "first.run"), list[str]()
    with encodings_noted(encoded):
        rerank(world, tmp_path / "two.run", model, "--top-k", 2)
        shared = {BY_ID[corpus] for ids in given.rankings.values() for corpus in ids[:2]}
        assert sorted(encoded) == sorted(shared)  # each once
        rerank(world, tmp_path / "four.run", model, "--top-k", 4)
        wanted = {BY_ID[corpus] for ids in given.rankings.values() for corpus in ids[:4]}
        assert sorted(encoded) == sorted(wanted)  # the deeper call encoded the others alone
    about = json.loads((tmp_path / "four.run.manifest.json").read_text(encoding="utf-8"))
    assert (about["kind"], about["passages_encoded"]) == (kind, len(wanted))
    words = ["--release", world / "release", "--split", "train", "--out", tmp_path / "whole.run"]
    run("baselines", "run", model, *words, "--index", tmp_path / "index")
    whole = {query: dict(hits) for query, hits in read_run(tmp_path / "whole.run").hits.items()}
    again = ["--over", world / "first.run", "--top-k", 4, "--index", tmp_path / "index"]
    done = run("baselines", "run", model, *words[:-1], tmp_path / "over.run", *again)
    for name, digits in (("four", 1e-3), ("over", 0)):  # the encodings of the whole collection give every digit
        for query, hits in read_run(tmp_path / f"{name}.run").hits.items():
            ids, best, rest = [corpus for corpus, _ in hits], given.rankings[query][:4], given.rankings[query][4:]
            assert set(ids[:4]) == set(best) and ids[4:] == rest
            scores = {corpus: score for corpus, score in hits if corpus in best and corpus in whole[query]}
            assert scores == pytest.approx({c: whole[query][c] for c in scores}, rel=digits, abs=0)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(f"top 4 {len(wanted)} passages encoded, 0 of them now, " in line for line in lines)
    assert sum(line.startswith((f"{world}/first.run", f"{tmp_path}/over.run")) for line in lines) == 4


def test_an_interrupted_encoding_of_candidates_is_resumed(world: Path, tmp_path: Path) -> None:
    encoded: list[str] = []
    with encodings_noted(encoded, most=2):
        rerank(world, tmp_path / "a.run", world / "dual", code=130)
    with encodings_noted(encoded):
        rerank(world, tmp_path / "a.run", world / "dual")
        assert sorted(encoded) == sorted(TEXTS)
    shutil.rmtree(tmp_path / "cache")
    with encodings_noted([]):
        rerank(world, tmp_path / "b.run", world / "dual")
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()


@pytest.mark.slow
def test_two_killed_stages_end_in_the_same_bytes(world: Path, tmp_path: Path, loaded: Loaded) -> None:
    words = ["baselines", "run", world / "dual", "--release", world / "release", "--split", "train", "--top-k", 4]
    words += ["--over", world / "first.run", "--out"]
    whole = loaded.run(*words, tmp_path / "whole.run", at=10**9)
    points, outputs = int(re.findall(r"^\d+", whole.stderr, re.M)[-1]), ["whole.run", "whole.run.manifest.json"]
    wanted = [(tmp_path / name).read_bytes() for name in outputs]
    for name in outputs:
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "cache")
    for share in (0.2, 0.4, 0.6, 0.8, 0.9):  # a command that goes on has fewer points
        loaded.run(*words, tmp_path / "whole.run", at=int(points * share), code=-signal.SIGKILL)
        left = [(tmp_path / name).exists() and (tmp_path / name).read_bytes() for name in outputs]
        assert all(each in (False, one) for each, one in zip(left, wanted, strict=True))
    loaded.run(*words, tmp_path / "whole.run")
    assert [(tmp_path / name).read_bytes() for name in outputs] == wanted


def test_two_stages_take_a_cross_encoder_too(world: Path, tmp_path: Path) -> None:
    words = ["--release", world / "release", "--split", "train", "--over", world / "first.run", "--top-k", 4]
    done = run("baselines", "run", world / "cross", *words, "--out", tmp_path / "b.run", "--format", "json")
    rerank(world, tmp_path / "a.run", world / "cross", "--top-k", 4)
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    assert json.loads(done.stdout)["first_stage"]["run"] == str(world / "first.run")
    for more, message in [
        (["--kind", "two"], "--kind two: expected cross, llm, listwise"),
        (["--index", "here"], "--index here: a model of kind cross has no index"),
    ]:
        wrong = run("baselines", "run", world / "cross", *words, "--out", tmp_path / "c.run", *more, code=1)
        assert message in wrong.error
