"""Models behind endpoints: embeddings and re-ranking, kept answers, limits of services, wrong answers, and keys."""

import json
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Done, error_of, run
from embedding_server import EmbeddingServer, count_characters, score
from hostile_server import HostileServer
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, make_release, md5
from test_hostile_servers import start, stop, wait_until

from baselines import evaluate, search
from baselines.retrieve import service_client
from baselines.retrieve.answer_store import AnswerStore, batches_of, text_key
from baselines.retrieve.service_replies import read_scores, read_vectors
from builders.core import api_service
from builders.core.errors import InputError, Unfinished
from builders.store.runs import read_run

pytestmark = pytest.mark.usefixtures("own_cache")
KEY = "quite-a-secret-4711"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(api_service, "_LONGEST_WAIT", 0.01)
    monkeypatch.setenv("ENDPOINT_API_KEY", KEY)
    yield


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def run_endpoint(server: EmbeddingServer, release: Path, out: Path, *words: object, code: int = 0) -> Done:
    return run("baselines", "run", "counter", "--release", release, "--endpoint", server.url, "--out", out, words,
               code=code)  # fmt: skip


def encode_endpoint(server: EmbeddingServer, release: Path, out: Path, *words: object, code: int = 0) -> Done:
    return run("baselines", "encode", "--model", "counter", "--release", release, "--endpoint", server.url,
               "--out", out, words, code=code)  # fmt: skip


def test_a_run_equals_that_of_the_same_function(release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        run_endpoint(server, release, tmp_path / "run")
    expected = search(lambda texts: [count_characters(text) for text in texts], release)
    hits = read_run(tmp_path / "run").to_dict()
    for query_id, scores in expected.items():
        # The index has 16-bit numbers.
        assert hits[query_id] == pytest.approx(scores, abs=2e-3)


def test_a_request_has_the_options_of_its_texts(release: Path, tmp_path: Path) -> None:
    words = ["--query-model", "counter-query", "--query-input-type", "task=retrieval.query", "--passage-prompt", "段："]
    words += ["--passage-input-type", "passage", "--dimensions", "5", "--encoding-format", "float"]
    with EmbeddingServer() as server:
        run_endpoint(server, release, tmp_path / "run", *words)
        by_model: dict[str, list[dict[str, Any]]] = {}
        for body, authorization, path in server.asked:
            assert (authorization, path) == (f"Bearer {KEY}", "/v1/embeddings")
            by_model.setdefault(body["model"], []).append(body)
    passages = by_model["counter"][-1]
    queries = by_model["counter-query"][-1]
    assert passages["input"] == [f"段：{text}" for text in TEXTS]
    assert (passages["input_type"], passages["dimensions"], passages["encoding_format"]) == ("passage", 5, "float")
    assert queries["input"] == QUESTIONS["dev"]
    assert queries["task"] == "retrieval.query"
    assert "input_type" not in queries


def test_numbers_and_base64_give_the_same_run(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddingServer() as server:
        for encoding in ("base64", "float"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / encoding))
            run_endpoint(server, release, tmp_path / f"{encoding}.run", "--encoding-format", encoding)
    assert (tmp_path / "base64.run").read_bytes() == (tmp_path / "float.run").read_bytes()


def test_no_text_is_requested_twice(release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        run_endpoint(server, release, tmp_path / "run")
        assert sorted(server.texts) == sorted([*TEXTS, *QUESTIONS["dev"]])
        # Other verbs use the same answers. Only the two texts that check the model are sent again.
        server.asked.clear()
        encode_endpoint(server, release, tmp_path / "passages")
        run("baselines", "rerank", "--release", release, "--run", tmp_path / "run", "--model", "counter", "--kind",
            "dense", "--endpoint", server.url, "--out", tmp_path / "reranked")  # fmt: skip
        assert server.texts == server.asked[0][0]["input"]
        # A finished output needs no server.
    assert "already done" in run_endpoint(server, release, tmp_path / "run").stderr
    assert read_run(tmp_path / "reranked").rankings == read_run(tmp_path / "run").rankings


def test_a_manifest_has_the_costs(release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        stdout = run_endpoint(server, release, tmp_path / "run", "--request-texts", "2").stdout
        costs = json.loads((tmp_path / "run.manifest.json").read_text())["endpoint"]
        encode_endpoint(server, release, tmp_path / "passages")
    texts = [*TEXTS, *QUESTIONS["dev"]]
    assert costs["texts"] == len(texts)
    assert costs["kept_texts"] == 0
    assert costs["tokens"] == sum(map(len, texts))
    assert costs["requests"] == -(-len(TEXTS) // 2) + -(-len(QUESTIONS["dev"]) // 2)
    assert costs["request_seconds"] > 0
    assert f"{costs['tokens']:,} tokens" in stdout
    # Kept answers have the costs of their requests.
    passage_costs = json.loads((tmp_path / "passages" / "manifest.json").read_text())["endpoint"]
    assert passage_costs["texts"] == passage_costs["kept_texts"] == len(TEXTS)
    assert passage_costs["tokens"] == sum(map(len, TEXTS))


def test_a_manifest_has_the_queries_of_a_file(release: Path, tmp_path: Path) -> None:
    queries_path = tmp_path / "questions.tsv"
    tags = []
    with EmbeddingServer() as server:
        for query_text in ("手机进水", "饺子怎么煮"):
            queries_path.write_text(f"a\t{query_text}\n", encoding="utf-8")
            run_endpoint(server, release, tmp_path / "run", "--queries-file", queries_path)
            manifest = json.loads((tmp_path / "run.manifest.json").read_text(encoding="utf-8"))
            assert (manifest["split"], manifest["own_queries"]["queries"]) == ("", 1)
            assert set(manifest["release"]) == {"corpus"}
            tags.append(manifest["tag"])
    assert tags[0] != tags[1]


def test_requests_have_limits() -> None:
    texts = ["四个汉字", "两字", "一二三四五六七", "一", "二", "三"]
    requests = [[texts[number] for number in batch] for batch in batches_of(texts, most_texts=2, most_characters=6)]
    assert requests == [["四个汉字", "两字"], ["一二三四五六七"], ["一", "二"], ["三"]]


def test_a_busy_service_is_asked_again(release: Path, tmp_path: Path) -> None:
    refused: list[int] = []

    def refuse_every_second(body: dict[str, Any], _: Any) -> Any:
        refused.append(0)
        return (429, {"Retry-After": "0"}) if len(refused) % 2 else None

    with EmbeddingServer() as server:
        run_endpoint(server, release, tmp_path / "run")
        expected = (tmp_path / "run").read_bytes()
    with EmbeddingServer(refuse_every_second) as server:
        run_endpoint(server, release, tmp_path / "again", "--request-texts", "1", "--parallel", "3")
    assert (tmp_path / "again").read_bytes() == expected


def test_late_answers_after_other_failures_end_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    service = api_service.ApiService("http://localhost:9/v1", reply_bytes=1000)
    http_library = service._http_library
    failures = [http_library.ConnectError("refused")] * 3 + [http_library.ReadTimeout("late")] * 5

    class FailingClient:
        def post(self, *args: Any, **options: Any) -> Any:
            raise failures.pop(0)

    monkeypatch.setattr(service, "_client", FailingClient())
    monkeypatch.setattr(service, "_pause", lambda attempt, retry_after, reason: None)
    with pytest.raises(Unfinished, match=r"cannot be reached \(late\)"):
        service.post({}, may_be_split=False)


@pytest.mark.parametrize("header", ["soon", "Mon, 01 Jan 2024 00:00:00 +999999999999999999"])
def test_a_wrong_retry_after_counts_as_none(header: str) -> None:
    assert api_service._seconds_of(header) is None


def test_an_answer_is_kept_before_the_next_request_fails(release: Path, tmp_path: Path) -> None:
    def fail_later(body: dict[str, Any], _: Any) -> Any:
        return (429, {"Retry-After": "9999"}) if len(server.asked) > 3 else None

    words = ["--request-texts", "1", "--parallel", "1"]
    with EmbeddingServer(fail_later) as server:
        done = encode_endpoint(server, release, tmp_path / "passages", *words, code=1)
        assert "asks to wait 9,999 seconds; run the same command again later" in error_of(done)
        server.asked.clear()
        server.spoil = None
        encode_endpoint(server, release, tmp_path / "passages", *words)
        assert sorted(server.texts) == sorted(TEXTS[2:])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_resumes_to_the_same_bytes(number: signal.Signals, release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        words = ["--request-texts", "1", "--parallel", "1"]
        run_endpoint(server, release, tmp_path / "expected", *words)
        expected = (tmp_path / "expected").read_bytes()
    is_slow = True

    def stall(body: dict[str, Any], _: Any) -> None:
        if is_slow and len(server.asked) > 3:
            server.stalled.wait(60)

    with EmbeddingServer(stall) as server:
        server.stalled = threading.Event()  # type: ignore[attr-defined]
        command = [sys.executable, "-m", "baselines", "run", "counter", "--release", str(release)]
        command += ["--endpoint", server.url, "--out", str(tmp_path / "run"), *words]
        process = start(command)
        wait_until(lambda: len(server.asked) > 3, process)
        if number == signal.SIGTERM:
            stop(process, number)
        else:
            process.kill()
            process.wait()
        is_slow = False
        server.stalled.set()  # type: ignore[attr-defined]
        server.asked.clear()
        run_endpoint(server, release, tmp_path / "run", *words)
        assert set(server.texts) == {*TEXTS[2:], *QUESTIONS["dev"]}
    assert (tmp_path / "run").read_bytes() == expected


def answer_with(**fields: Any) -> Any:
    """Return a function that changes fields of every answer after the first."""

    def spoil(body: dict[str, Any], answer: dict[str, Any]) -> Any:
        return answer | fields if len(body["input"]) != 2 else None

    return spoil


def change_vector(vector: Any) -> Any:
    def spoil(body: dict[str, Any], answer: dict[str, Any]) -> Any:
        if len(body["input"]) != 2:
            answer["data"][0]["embedding"] = vector
        return answer

    return spoil


def change_index(index: Any) -> Any:
    def spoil(body: dict[str, Any], answer: dict[str, Any]) -> Any:
        if len(body["input"]) != 2:
            answer["data"][0]["index"] = index
        return answer

    return spoil


WRONG_ANSWERS = {
    "another dimension": (change_vector([1.0, 2.0]), "answered 2 dimensions for the text .* expected 15"),
    "NaN": (change_vector([float("nan")] * 15), "answered NaN or infinity for the text '.*' \\(.* characters\\)"),
    "null": (change_vector([None] * 15), "answered no vector of numbers for the text"),
    "text": (change_vector("!!"), "answered no vector of numbers for the text"),
    "missing index": (change_index(None), r"data\[0\]\.index: expected .*int"),
    "duplicate index": (change_index(0), "data has the index 0 twice"),
    "unknown index": (change_index(99), "data has the index 99 for"),
    "fewer answers": (answer_with(data=[]), "data has 0 entries for .* texts; the index 0 is missing"),
    "another model": (answer_with(model="other"), "answered with the model 'other'; expected 'counter'"),
    "HTML": (lambda *_: b"<html>Sign in</html>", "answered with a page .*Sign in.*; expected JSON with vectors"),
    "no JSON": (lambda *_: b"{", "expected JSON"),
    "a list": (lambda *_: [1], "expected a JSON object"),
    "redirect": (lambda *_: (307, {"Location": "http://other/v1?token=hidden-4712"}), "a redirect to http://other/v1"),
    "refused": (lambda *_: 401, "answered 401"),
    "compressed": (lambda *_: (200, {"Content-Encoding": "gzip"}), "the reply is compressed"),
}


@pytest.mark.parametrize("fault", WRONG_ANSWERS)
def test_a_wrong_answer_is_one_line_without_the_key(
    fault: str, release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_service, "_ATTEMPTS", 2)
    spoil, problem = WRONG_ANSWERS[fault]
    with EmbeddingServer(spoil) as server:
        done = encode_endpoint(server, release, tmp_path / "passages", code=1)
        error = error_of(done)
        assert error.startswith(f"error: {server.url}/embeddings: ")
    assert re.search(problem, error)
    assert KEY not in done.stderr
    assert "hidden-4712" not in done.stderr
    assert not (tmp_path / "passages").exists()


@pytest.mark.parametrize("mode", ["silent", "drip-body", "endless", "endless-chunks"])
def test_a_service_that_hangs_or_floods_is_one_line(
    mode: str, release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_TIMEOUT", "1.2")
    monkeypatch.setattr(api_service, "_ATTEMPTS", 1)
    monkeypatch.setattr(api_service, "_ATTEMPTS_AFTER_TIMEOUT", 1)
    monkeypatch.setattr(service_client, "_BYTES_PER_NUMBER", 1)
    with HostileServer(mode) as server:
        done = encode_endpoint(server, release, tmp_path / "passages", code=1)
        problem = "over .* bytes" if mode.startswith("endless") else "no complete reply|timed out"
        assert re.search(problem, error_of(done))
        assert server.sent < 64 << 20


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_text_that_a_service_refuses_is_in_the_error(status: int, release: Path, tmp_path: Path) -> None:
    wrong_text = TEXTS[2]
    with EmbeddingServer(lambda body, _: status if wrong_text in body["input"] else None) as server:
        done = encode_endpoint(server, release, tmp_path / "passages", code=1)
        assert f"answered {status}" in error_of(done)
        assert f"the request had the text '{wrong_text[:40]}" in error_of(done)
        # The texts before it are kept.
        server.asked.clear()
        server.spoil = None
        encode_endpoint(server, release, tmp_path / "passages")
        assert TEXTS[0] not in server.texts


def test_another_model_behind_the_same_name_is_asked_for_all_texts(release: Path, tmp_path: Path) -> None:
    def swap(body: dict[str, Any], answer: dict[str, Any]) -> Any:
        for entry, text in zip(answer["data"], reversed(body["input"]), strict=True):
            entry["embedding"] = count_characters(text)[::-1]
        return answer

    with EmbeddingServer() as server:
        encode_endpoint(server, release, tmp_path / "passages")
        server.asked.clear()
        server.spoil = swap
        encode_endpoint(server, release, tmp_path / "again")
        assert sorted(server.texts) == sorted(TEXTS)


def test_the_openai_key_is_for_its_own_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENDPOINT_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert api_service.api_key_for("https://api.openai.com/v1/embeddings") == KEY
    assert api_service.api_key_for("http://localhost:8000/v1/rerank") == KEY
    assert api_service.api_key_for("http://localhost:8001/v1/rerank") == ""
    assert api_service.api_key_for("https://api.openai.com.example/v1") == ""


@pytest.mark.parametrize("is_tei", [False, True])
def test_a_reranker_scores_the_passages_of_a_run(is_tei: bool, release: Path, tmp_path: Path) -> None:
    first_run = search("bm25", release)
    with EmbeddingServer(is_tei=is_tei) as server:
        address = f"{server.root}/rerank" if is_tei else server.url
        reranked = search("scorer", release, run=first_run, endpoint=address, request_texts=2)
        question = QUESTIONS["dev"][0]
        texts = {md5(text): text for text in TEXTS}
        for passage_id, passage_score in reranked[md5(question)].items():
            assert passage_score == pytest.approx(score(question, texts[passage_id]))
        # A second call asks only about the two texts that check the model.
        server.asked.clear()
        assert search("scorer", release, run=first_run, endpoint=address) == reranked
        assert len(server.asked) == 1 + is_tei


@pytest.mark.parametrize(
    ("results", "problem"),
    [([], "results has 0 entries"), ([{"index": 0, "relevance_score": None}], "no finite score for the text")],
)
def test_wrong_scores_are_refused(results: Any, problem: str, release: Path) -> None:
    first_run = search("bm25", release, top_k=1)
    spoil = lambda body, answer: {"results": results} if len(body["documents"]) == 1 else None  # noqa: E731
    with EmbeddingServer(spoil) as server, pytest.raises(InputError, match=problem):
        search("scorer", release, run=first_run, endpoint=server.url)


def test_similar_questions_are_those_of_the_vectors(release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        out = tmp_path / "similar.run"
        run("baselines", "match", "--release", release, "--model", "counter", "--endpoint", server.url, "--out", out)
        vectors = {}
        for question in [*QUESTIONS["dev"], *QUESTIONS["train"]]:
            vector = np.array(count_characters(question))
            vectors[md5(question)] = vector / np.linalg.norm(vector)
    hits = read_run(out).to_dict()
    for question_id, scores in hits.items():
        for train_id, cosine in scores.items():
            if question_id in vectors and train_id in vectors:
                assert cosine == pytest.approx(vectors[question_id] @ vectors[train_id], abs=2e-3)
    assert json.loads(out.with_name("similar.run.manifest.json").read_text())["endpoint"]["tokens"] > 0


WRONG_CALLS = {
    "ftp://host/v1": [],
    "localhost:8000": [],
    "http://host:port/v1": [],
    "http://h/v1": ["--device", "cpu"],
    "http://h/v1 ": ["--dtype", "bf16"],
    "http://h/rerank": [],
    "http://h/v1/embeddings": ["--kind", "cross"],
    "http://h/v2": ["--no-normalize"],
    "http://h/v3": ["--tokenizers", "0"],
}


@pytest.mark.parametrize("address", WRONG_CALLS)
def test_a_wrong_call_sends_nothing(address: str, release: Path, tmp_path: Path) -> None:
    done = run("baselines", "run", "counter", "--release", release, "--out", tmp_path / "run", "--endpoint", address,
               WRONG_CALLS[address], code=2)  # fmt: skip
    assert len(done.stderr.strip().splitlines()) == 1


def test_options_of_an_endpoint_need_its_address(release: Path) -> None:
    done = run("baselines", "run", "counter", "--release", release, "--dimensions", "3", code=2)
    assert "--dimensions needs --endpoint" in done.stderr


def test_a_password_of_the_address_is_in_no_output(release: Path, tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        address = server.url.replace("http://", "http://user:password-4713@") + "?api-key=hidden-4714"
        done = run(
            "baselines", "run", "counter", "--release", release, "--out", tmp_path / "run", "--endpoint", address
        )
        assert server.asked[0][2] == "/v1/embeddings?api-key=hidden-4714"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (b"password-4713", b"hidden-4714", KEY.encode()):
        assert secret not in done.stderr.encode()
        assert not any(secret in content for content in written)


def test_damaged_answers_are_requested_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    store = AnswerStore(path, value_bytes=4)
    keys = [text_key("a"), text_key("b"), text_key("a", query="b")]
    store.write(keys, [b"1234", b"5678", b"9abc"], tokens=6, seconds=3.0)
    assert {key: answer.value for key, answer in store.read(keys).items()} == dict(
        zip(keys, [b"1234", b"5678", b"9abc"], strict=True)
    )
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE answers SET value = ? WHERE key = ?", (b"12x4", keys[0]))
        connection.execute("UPDATE answers SET value = ? WHERE key = ?", ("text", keys[1]))
    assert list(store.read(keys)) == keys[2:]
    assert store.read(keys)[keys[2]].tokens == 2
    path.write_bytes(b"no database at all" * 100)
    assert AnswerStore(path, value_bytes=4).read(keys) == {}


@pytest.mark.parametrize("column", ["requests", "tokens", "seconds"])
@pytest.mark.parametrize("damage", [None, "text", b"1", -1.0, float("inf")])
def test_an_answer_with_damaged_costs_is_requested_again(tmp_path: Path, column: str, damage: Any) -> None:
    path = tmp_path / "answers.sqlite"
    store = AnswerStore(path, value_bytes=4)
    keys = [text_key("a"), text_key("b")]
    store.write(keys, [b"1234", b"5678"], tokens=6, seconds=3.0)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE answers SET {column} = ? WHERE key = ?", (damage, keys[0]))
    # A service may count no tokens.
    is_allowed = column == "tokens" and damage is None
    assert store.read(keys).keys() == set(keys if is_allowed else keys[1:])


@pytest.mark.parametrize("usage", ["null", "{}", '{"total_tokens":-1}', '{"prompt_tokens":-1}'])
def test_a_service_may_say_no_tokens(usage: str) -> None:
    content = SCORES.replace(b'"usage":{}', b'"usage":' + usage.encode())
    assert read_scores(content, ["水", "冬天"], "http://h").tokens is None


def test_evaluate_takes_an_endpoint(release: Path) -> None:
    with EmbeddingServer() as server:
        assert evaluate("counter", release, endpoint=server.url)["MRR@10"] > 0


VECTORS = b'{"data":[{"index":1,"embedding":[1.0,2.5]},{"index":0,"embedding":"AACAPwAAAEA="}],"model":"m"}'
SCORES = b'{"results":[{"index":1,"relevance_score":0.5},{"index":0,"relevance_score":1e-3}],"usage":{}}'


@settings(max_examples=1_000, deadline=None)
@given(st.sampled_from([VECTORS, SCORES]), st.data())
def test_a_damaged_answer_is_refused_or_read(content: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(0, 4))
    damaged = content[:position] + data.draw(st.binary(max_size=3)) + content[position + length :]
    read = read_vectors if content is VECTORS else read_scores
    try:
        answer = read(damaged, ["水", "冬天"], "http://h")
    except InputError as error:
        assert str(error).startswith("http://h: ")
        return
    numbers = np.frombuffer(b"".join(answer.values), np.float32 if content is VECTORS else np.float64)
    assert len(answer.values) == 2
    assert np.isfinite(numbers).all()
