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

from baselines.core import run_costs
from baselines.retrieve import rerankers, vector_index
from builders.store.runs import Hit, read_run, write_run

Ask = Callable[..., tuple[list[list[str]], Chat]]
ALL_TEXTS = TEXTS + QUESTIONS["train"] + QUESTIONS["dev"] + QUESTIONS["test"]
BY_ID = {md5(text): text for text in ALL_TEXTS}
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
    rankings = []
    for query_id in questions:
        hits = [(md5(text), 1 / rank) for rank, text in enumerate(rng.sample(TEXTS, 6), 1)]
        rankings.append((query_id, hits))
    write_run(folder / "first.run", rankings)
    return folder


def rerank(world: Path, out: Path, model: object, *words: object, code: int | None = 0) -> Done:
    """Re-rank the first run by the model."""
    usual_words = ["--release", world / "release", "--split", "train", "--run", world / "first.run", "--out", out]
    return run("baselines", "rerank", usual_words, "--model", model, words, code=code)


def run_rerank(world: Path, out: Path, *words: str | Path) -> int:
    """Re-rank the first run by the cross-encoder, and return the exit code."""
    return rerank(world, out, world / "cross", *words, code=None).code


def test_scores_are_the_cross_encoders_in_the_runs_order(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--top-k", "4") == 0
    first_run = read_run(world / "first.run")
    reranked = read_run(tmp_path / "a.run")
    assert list(reranked.hits) == list(first_run.hits)
    model = CrossEncoder(str(world / "cross"), device="cpu")
    for query_id, hits in reranked.hits.items():
        passage_ids = reranked.rankings[query_id]
        first_ids = first_run.rankings[query_id]
        assert set(passage_ids[:4]) == set(first_ids[:4])
        assert passage_ids[4:] == first_ids[4:]  # behind the re-ranked passages, in their old order
        all_scores = [score for _, score in hits]
        assert all_scores[3] > all_scores[4] > all_scores[5]
        assert all_scores[5] > all_scores[3] - 1e-4
        pairs = [(BY_ID[query_id], BY_ID[passage_id]) for passage_id in passage_ids[:4]]
        scores = np.array(all_scores[:4])
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

    def score_and_record(job: Any, device: str, groups: Any) -> Any:
        if len(scored) >= most:
            raise KeyboardInterrupt
        scored.append(groups[0][0])
        return score(job, device, groups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "QUERIES_PER_FILE", 1)
        patch.setattr(rerankers, "score_groups", score_and_record)
        patch.setattr(run_costs, "MEASURED_QUERIES", 0)  # no query is scored again to be timed
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
    for query_id, hits in read_run(tmp_path / "a.run").hits.items():
        pairs = [(BY_ID[query_id], BY_ID[passage_id]) for passage_id, _ in hits]
        probabilities = model.predict(pairs, apply_softmax=True)[:, 1]
        assert probabilities.tolist() == sorted(probabilities.tolist(), reverse=True)
        scores = np.array([score for _, score in hits])
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), probabilities, atol=1e-5)


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
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--out", "RUN"], "is both a file to read and --out"),
    ],
)
def test_bad_input_is_one_error(world: Path, tmp_path: Path, line: str, words: list[str], message: str) -> None:
    bad_run = tmp_path / "bad.run"
    line = line.replace("QUERY", md5(QUESTIONS["train"][0]))
    line = line.replace("PASSAGE", md5(TEXTS[0]))
    bad_run.write_text(f"{line}\n")
    words = [word.replace("WORLD", str(world)).replace("RUN", str(bad_run)) for word in words]
    done = rerank(world, tmp_path / "a.run", world / "cross", "--run", bad_run, *words, code=1)
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
        last_logits = [model(token_ids).logits[0, -1] for token_ids in tokens]
    return [float(logits[yes] - logits[no]) for logits in last_logits]


def expect_scores(folder: Path, hits_by_query: dict[str, list[Hit]], prompt: str, **values: str) -> None:
    """Check the scores of the first query against those of transformers for the prompt with these values."""
    query_id, hits = next(iter(hits_by_query.items()))
    prompts = []
    for passage_id, _ in hits:
        prompts.append(prompt.format(query=BY_ID[query_id], passage=BY_ID[passage_id], **values))
    scores = [score for _, score in hits]
    np.testing.assert_allclose(scores, log_odds(folder, prompts), atol=1e-3)
    assert len(set(scores)) == len(TEXTS)
    assert scores == sorted(scores, reverse=True)


def test_a_language_model_is_asked_for_yes_or_no(world: Path, tmp_path: Path) -> None:
    rerank(world, tmp_path / "a.run", world / "llm", "--dtype", "fp32")
    expect_scores(world / "llm", read_run(tmp_path / "a.run").hits, ASKED, instruct=WEB)
    rerank(world, tmp_path / "b.run", world / "llm", "--dtype", "fp32", "--prompt", "找出能回答问题的段落")
    expect_scores(world / "llm", read_run(tmp_path / "b.run").hits, ASKED, instruct="找出能回答问题的段落")


def test_a_template_of_queries_and_documents_is_the_models_own(world: Path, tmp_path: Path) -> None:
    content_of_role = "{{ messages | selectattr('role', 'eq', 'ROLE') | map(attribute='content') | first }}"
    query = content_of_role.replace("ROLE", "query")
    document = content_of_role.replace("ROLE", "document")
    folder = write_language_model(tmp_path / "llm", f"query={query};document={document};")
    rerank(world, tmp_path / "a.run", folder, "--dtype", "fp32")
    expect_scores(folder, read_run(tmp_path / "a.run").hits, "query={query};document={passage};")


def test_without_a_system_role_the_question_has_the_instruction(world: Path, tmp_path: Path) -> None:
    template = (
        "{%- for message in messages -%}{%- if message.role != 'user' -%}{{ raise_exception('no such role') }}"
        "{%- endif -%}U: {{ message.content }}\nA: {%- endfor -%}"
    )
    folder = write_language_model(tmp_path / "llm", template)
    rerank(world, tmp_path / "a.run", folder, "--dtype", "fp32")
    system = re.search(r"system\n(.*)<\|im_end\|>\n<\|im_start\|>user", ASKED)
    assert system
    prompt = f"U: {system[1]}\n\n<Instruct>: {WEB}\n<Query>: {{query}}\n<Document>: {{passage}}\nA:"
    expect_scores(folder, read_run(tmp_path / "a.run").hits, prompt)


def read_passages(prompt: str) -> list[str]:
    """Return the numbered passages of a prompt."""
    return re.findall(r"(?m)^\[\d+\] (.*)$", prompt)


def by_size(prompt: str) -> str:
    """Answer with the numbers of the passages, the longest first."""
    passages = read_passages(prompt)
    order = sorted(range(len(passages)), key=lambda number: (-len(passages[number]), passages[number]))
    return " > ".join(f"[{number + 1}]" for number in order)


@pytest.fixture
def ask(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Re-rank by a model with this answer. Return the ranked texts of each query, and the server."""

    def call(answer: Callable[[str], str | int], *words: object) -> tuple[list[list[str]], Chat]:
        with Chat(answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", *words)
        texts_by_query = []
        for hits in read_run(tmp_path / "a.run").hits.values():
            assert [score for _, score in hits] == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
            texts_by_query.append([BY_ID[passage_id] for passage_id, _ in hits])
        return texts_by_query, server

    return call


BEST = sorted(TEXTS, key=lambda text: (-len(text), text))


def test_queries_at_an_endpoint_are_timed_during_the_run(ask: Ask, tmp_path: Path) -> None:
    ranked_texts, server = ask(by_size, "--parallel", 2)
    manifest = json.loads((tmp_path / "a.run.manifest.json").read_bytes())
    query_count = len(ranked_texts)
    assert manifest["query_latency"]["queries"] == query_count
    assert manifest["query_latency"]["measured"] == "during the run, 2 queries at once"
    assert manifest["throughput"]["pairs"]["texts"] == 6 * query_count
    assert len(server.prompts) == query_count  # no query is sent again


@pytest.mark.slow
def test_a_model_behind_an_endpoint_orders_the_passages(world: Path, ask: Ask) -> None:
    ranked_texts, server = ask(by_size, "--prompt", "长的在前")
    assert ranked_texts == [BEST] * 4
    first_texts = []
    for passage_ids in read_run(world / "first.run").rankings.values():
        first_texts.append([BY_ID[passage_id] for passage_id in passage_ids])
    assert sorted(map(read_passages, server.prompts)) == sorted(first_texts)
    assert all(prompt.startswith("长的在前\n\n问题：") for prompt in server.prompts)
    assert {sent["model"] for sent, _ in server.asked} == {"some-model"}


def test_queries_of_the_same_text_are_sorted_apart(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.tsv").write_text("a\t手机进水\nb\t手机进水\nc\t一段\n", encoding="utf-8")
    texts_by_query = {"a": TEXTS[:3], "b": TEXTS[2:5], "c": TEXTS[:1]}
    first_hits = []
    for query_id, texts in texts_by_query.items():
        first_hits.append((query_id, [(md5(text), -rank) for rank, text in enumerate(texts)]))
    write_run(tmp_path / "first.run", first_hits)
    words = ["--release", world / "release", "--run", tmp_path / "first.run", "--queries-file", tmp_path / "q.tsv"]
    with Chat(by_size) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        words += ["--model", "some-model", "--kind", "listwise", "--out", tmp_path / "a.run"]
        run("baselines", "rerank", words)
    # A single passage needs no order, so it is neither sent nor timed.
    sent_texts = [texts for texts in texts_by_query.values() if len(texts) > 1]
    assert sorted(map(read_passages, server.prompts)) == sorted(sent_texts)
    manifest = json.loads((tmp_path / "a.run.manifest.json").read_bytes())
    assert manifest["query_latency"]["queries"] == len(sent_texts)
    for query_id, hits in read_run(tmp_path / "a.run").hits.items():
        longest_first = sorted(texts_by_query[query_id], key=lambda text: (-len(text), text))
        assert [passage_id for passage_id, _ in hits] == list(map(md5, longest_first))
        assert [score for _, score in hits] == list(range(len(hits), 0, -1))


def test_windows_carry_the_best_to_the_top(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerankers, "PASSAGES_PER_WINDOW", 4)
    monkeypatch.setattr(rerankers, "WINDOW_STEP", 2)
    ranked_texts, server = ask(by_size)
    assert [texts[:2] for texts in ranked_texts] == [BEST[:2]] * 4
    assert [len(read_passages(prompt)) for prompt in server.prompts] == [4] * 8


@pytest.mark.parametrize(
    ("answer", "order"),
    [
        ("[3] > [1]", [2, 0, 1, 3, 4, 5]),
        ("<think>[6] is long</think>\n[2] > [9] > [2] > [0] > [5]", [1, 4, 0, 2, 3, 5]),
        ("我不知道", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_passages_that_an_answer_lacks_keep_their_order(world: Path, ask: Ask, answer: str, order: list[int]) -> None:
    ranked_texts, _ = ask(lambda _: answer)
    for texts, ids in zip(ranked_texts, read_run(world / "first.run").rankings.values(), strict=True):
        assert texts == [BY_ID[ids[number]] for number in order]


def test_no_question_is_asked_again(world: Path, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerankers, "ENDPOINT_QUERIES_PER_FILE", 1)
    last = QUESTIONS["train"][0]
    with Chat(lambda prompt: 500 if last in prompt else by_size(prompt)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        failed = rerank(world, tmp_path / "a.run", "some-model", "--kind", "listwise", code=1)
        assert "answered 500" in failed.stderr
    ranked_texts, server = ask(by_size)
    assert ranked_texts == [BEST] * 4 and len(server.asked) == 1


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

    def encode_and_record(*given: Any) -> list[str]:
        texts = texts_of(*given)
        if len(encoded) + len(texts) > most:
            raise KeyboardInterrupt
        encoded.extend(texts)
        return texts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_index, "ROWS_ON_CPU", 16)  # two passages in a chunk of candidates
        patch.setattr(vector_index, "_read_texts", encode_and_record)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("model_kind", ENCODERS)
def test_an_encoder_scores_candidates_as_it_scores_the_collection(world: Path, tmp_path: Path, model_kind: str) -> None:
    model = ENCODERS[model_kind](tmp_path / "model")
    first_run = read_run(world / "first.run")
    encoded: list[str] = []
    with encodings_noted(encoded):
        rerank(world, tmp_path / "two.run", model, "--top-k", 2)
        top_two_texts = {BY_ID[corpus] for ids in first_run.rankings.values() for corpus in ids[:2]}
        assert sorted(encoded) == sorted(top_two_texts)  # each once
        rerank(world, tmp_path / "four.run", model, "--top-k", 4)
        top_four_texts = {BY_ID[corpus] for ids in first_run.rankings.values() for corpus in ids[:4]}
        assert sorted(encoded) == sorted(top_four_texts)  # the deeper call encoded the others alone
    about = json.loads((tmp_path / "four.run.manifest.json").read_text(encoding="utf-8"))
    assert (about["kind"], about["passages_encoded"]) == (model_kind, len(top_four_texts))
    words = ["--release", world / "release", "--split", "train", "--out", tmp_path / "whole.run"]
    run("baselines", "run", model, words, "--index", tmp_path / "index")
    whole_scores = {query: dict(hits) for query, hits in read_run(tmp_path / "whole.run").hits.items()}
    over_words = ["--over", world / "first.run", "--top-k", 4, "--index", tmp_path / "index"]
    done = run("baselines", "run", model, words[:-1], tmp_path / "over.run", over_words)
    for name, digits in (("four", 1e-3), ("over", 0)):  # the encodings of the whole collection give every digit
        for query, hits in read_run(tmp_path / f"{name}.run").hits.items():
            passage_ids = [passage_id for passage_id, _ in hits]
            candidates = first_run.rankings[query][:4]
            assert set(passage_ids[:4]) == set(candidates)
            assert passage_ids[4:] == first_run.rankings[query][4:]
            for passage_id, score in hits:
                if passage_id in candidates and passage_id in whole_scores[query]:
                    assert score == pytest.approx(whole_scores[query][passage_id], rel=digits, abs=0)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(f"top 4 {len(top_four_texts)} passages encoded, 0 of them now, " in line for line in lines)
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


def content_without_times(path: Path) -> Any:
    """Return a run's bytes, or a manifest without its times."""
    if path.suffix != ".json":
        return path.read_bytes()
    manifest = json.loads(path.read_bytes())
    return {key: value for key, value in manifest.items() if key not in run_costs.TIMED_KEYS}


@pytest.mark.slow
def test_two_killed_stages_end_in_the_same_bytes(world: Path, tmp_path: Path, loaded: Loaded) -> None:
    words = ["baselines", "run", world / "dual", "--release", world / "release", "--split", "train", "--top-k", 4]
    words += ["--over", world / "first.run", "--out"]
    undisturbed = loaded.run(*words, tmp_path / "whole.run", at=10**9)
    points = int(re.findall(r"^\d+", undisturbed.stderr, re.M)[-1])
    outputs = [tmp_path / "whole.run", tmp_path / "whole.run.manifest.json"]
    contents = {path: content_without_times(path) for path in outputs}
    for path in outputs:
        path.unlink()
    shutil.rmtree(tmp_path / "cache")
    for share in (0.2, 0.4, 0.6, 0.8, 0.9):  # a command that goes on has fewer points
        loaded.run(*words, tmp_path / "whole.run", at=int(points * share), code=-signal.SIGKILL)
        for path in outputs:
            assert not path.exists() or content_without_times(path) == contents[path]
    loaded.run(*words, tmp_path / "whole.run")
    assert {path: content_without_times(path) for path in outputs} == contents


def test_two_stages_take_a_cross_encoder_too(world: Path, tmp_path: Path) -> None:
    words = ["--release", world / "release", "--split", "train", "--over", world / "first.run", "--top-k", 4]
    done = run("baselines", "run", world / "cross", words, "--out", tmp_path / "b.run", "--format", "json")
    rerank(world, tmp_path / "a.run", world / "cross", "--top-k", 4)
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    assert json.loads(done.stdout)["first_stage"]["run"] == str(world / "first.run")
    for wrong_words, message in [
        (["--kind", "two"], "--kind two: expected cross, llm, listwise"),
        (["--index", "here"], "--index here: a model of kind cross has no index"),
    ]:
        wrong = run("baselines", "run", world / "cross", words, "--out", tmp_path / "c.run", wrong_words, code=1)
        assert message in wrong.error
