"""Keys, tokens and passwords in errors, logs, tracebacks and stored answers."""

import base64
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from annotating import annotate, judgments, make_round
from commands import ROOT, process
from hostile_server import ECHOES, HostileServer

from builders.core.endpoint import Endpoint
from builders.core.errors import InputError
from builders.core.redaction import hide_known, quote_reply, redact, register_secret, without_credentials

KEY = 'sk "unusual\\key-é 1234567890'
PLAIN_KEY = "plain-key-without-a-shape-1234567890"


@pytest.mark.parametrize(
    ("text", "redacted_text"),
    [
        ("https://user:pass@host/x", "https://[redacted]@host/x"),
        ("https://user:pa/ss@host", "https://[redacted]@host"),
        ("http://h/v1?api_key=abc&top=1", "http://h/v1?api_key=[redacted]&top=1"),
        ("?X-Amz-Signature=0a1b", "?X-Amz-Signature=[redacted]"),
        ("Authorization: Bearer abc", "Authorization: Bearer [redacted]"),
        ('{"x-api-key": "abc", "a": 1}', '{"x-api-key": "[redacted]", "a": 1}'),
        ('{\\"authorization\\": \\"Basic dXNlcjpwYXNz\\"}', '{\\"authorization\\": \\"Basic [redacted]\\"}'),
        ("sent Basic dXNlcjpwYXNz", "sent Basic [redacted]"),
        ("Incorrect key hf_ABCDEFGHIJKLMNOP.", "Incorrect key [redacted]."),
    ],
)
def test_secrets_are_recognised_by_names_and_shapes(text: str, redacted_text: str) -> None:
    assert redact(text) == redacted_text
    assert redact(redacted_text) == redacted_text


@pytest.mark.parametrize(
    "text",
    [
        "no token: log in with `hf auth login`, or set HF_TOKEN",
        "expected http(s)://[USER:PASSWORD@]HOST:PORT",
        "a Basic tokenizer, http://localhost:8000/v1, me@example.org, task-specific-prompts-of-2026",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redact(text) == text


def test_secrets_of_the_environment_are_recognised_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass%20word@proxy")
    monkeypatch.setenv("MY_TOKEN", "none")  # too short for a secret
    register_secret("https://elastic:of-an-option@host")
    twice = json.dumps(json.dumps({"sent": KEY}))
    forms = [KEY, quote(KEY), twice, base64.b64encode(b"me:pass word").decode(), "of-an-option"]
    for form in forms:
        for text in (redact(f"before {form} after"), hide_known(form)):
            assert "[redacted]" in text and "unusual" not in text and form not in text
    assert redact("none") == "none"
    assert quote_reply(f"aaaaaaaaaa {KEY}", 24) == "aaaaaaaaaa [redacted]"


def test_the_current_folder_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/anna/dureader")  # as a shell sets it
    monkeypatch.setenv("DB_PWD", "open-sesame-1234")
    assert redact("/home/anna/dureader/out: open-sesame-1234") == "/home/anna/dureader/out: [redacted]"


def test_addresses_in_files_have_no_credentials() -> None:
    assert without_credentials("https://me:pw@host:8/v1?api_key=abc") == "https://host:8/v1"
    assert without_credentials("http://host/v1/a@b") == "http://host/v1/a@b"


def test_errors_and_logs_hide_secrets(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HF_TOKEN", PLAIN_KEY)
    assert PLAIN_KEY not in str(InputError(f"found {PLAIN_KEY}", path=f"/tmp/{PLAIN_KEY}"))
    logging.getLogger("dureader_retrieval").warning("sent %s", PLAIN_KEY)
    assert PLAIN_KEY not in caplog.text and "[redacted]" in caplog.text


@pytest.mark.parametrize("mode", [mode for mode in ECHOES if mode != "choice"])
def test_a_key_that_an_endpoint_repeats_is_hidden(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileServer(mode) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url.replace('//', '//me:pass-word@')}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", PLAIN_KEY)
        with pytest.raises(InputError, match="answered 401") as caught:
            Endpoint("judge").answer("question")
    assert "[redacted]" in str(caught.value) and server.url in str(caught.value)
    assert PLAIN_KEY not in str(caught.value) and "pass-word" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_an_answer_with_the_key_is_stored_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with HostileServer("choice") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", PLAIN_KEY)
        assert Endpoint("judge").answer("question") == "最终得分：2 Bearer [redacted]"
        round_path = make_round(tmp_path)
        annotate("prefill", round_path, "--model", "judge")
        assert {row["label"] for row in judgments(round_path)} == {2}
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or PLAIN_KEY.encode() not in path.read_bytes()


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("mode", ["reason", "json", "header"])
def test_a_token_that_a_hub_repeats_is_hidden(mode: str, status: int, tmp_path: Path) -> None:
    with HostileServer(mode, status) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_TOKEN": PLAIN_KEY, "HF_HOME": str(tmp_path)}
        done = process("baselines", "pull", "org/name", "--out", tmp_path / "model", code=1, **environment)
        assert server.is_asked
    assert PLAIN_KEY not in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


def test_a_traceback_hides_secrets() -> None:
    code = """
from builders.core.exit_codes import exit_code
import os
def fail(): raise ZeroDivisionError(os.environ["HF_TOKEN"] + " https://me:pass-word@host")
exit_code(fail)
"""
    environment = os.environ | {"HF_TOKEN": PLAIN_KEY}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ZeroDivisionError: [redacted] https://[redacted]@host" in done.stderr
    assert PLAIN_KEY not in done.stderr
