"""``annotate translate``: queries translated by a model at an endpoint or on this machine, and the set made of them."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import ROOT, Done, command, names, run
from loopback import Answer, Chat
from releases import QUESTIONS, make_release, md5, tables
from test_crosslingual import fill, sheet_rows
from tiny_models import write_bert

from builders.annotate.translate import _saved_answers, _saved_line

ASKED = QUESTIONS["train"] + QUESTIONS["dev"]
ENGLISH = {text: f"Question {number}, in English" for number, text in enumerate(ASKED + QUESTIONS["test"])}
Translate = Callable[..., Done]


def query_of(prompt: str) -> str:
    """Return the query of a prompt."""
    return prompt.partition("<query>\n")[2].partition("\n</query>")[0]


def knows(prompt: str) -> Answer:
    """Answer a prompt as a model that knows every translation."""
    return ENGLISH[query_of(prompt)]


def asked(server: Chat) -> list[str]:
    """Return the queries that the server was asked to translate, in order."""
    return [query_of(prompt) for prompt in server.prompts]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    make_release(tmp_path / "release")
    return tmp_path / "machine.tsv"


@pytest.fixture
def translate(table: Path, monkeypatch: pytest.MonkeyPatch) -> Translate:
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def call(url: str, *words: object, splits: Sequence[str] = ("train", "dev"), code: int = 0) -> Done:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        command_words = ["annotate", "translate", "--quiet", "--release", table.parent / "release", "--split"]
        command_words += [*splits, "--model", "llm-7b", "--out", table]
        return run("builders", command_words, words, code=code)

    return call


def translations(table: Path) -> dict[str, str]:
    """Return the translations of a table by their Chinese query."""
    rows = sheet_rows(table)
    for row in rows:
        assert row["id"] == md5(row["zh"])
        assert row["model"] == "llm-7b"
    return {row["zh"]: row["machine_translation"] for row in rows}


def test_each_query_is_asked_once_and_other_splits_join_the_table(translate: Translate, table: Path) -> None:
    with Chat(lambda prompt: f' "{knows(prompt)}"\t\n or\u2028so ') as server:
        assert translate(server.url).stdout == f"6 of 6 queries translated by llm-7b (a model): {table}\n"
        expected = {text: f'"{english}" or so' for text, english in ENGLISH.items()}
        content = table.read_bytes()
        assert translations(table) == {text: expected[text] for text in ASKED}
        assert set(asked(server)) == set(ASKED)
        translate(server.url)
        assert translate("", splits=["dev"]).stdout.startswith("2 of 2")  # nothing is asked, so no address is needed
        assert len(server.asked) == 6 and table.read_bytes() == content
        translate(server.url, splits=["test"])
        assert asked(server)[6:] == QUESTIONS["test"] and translations(table) == expected
        for request, _ in server.asked:
            assert (request["model"], request["temperature"]) == ("llm-7b", 0)


def test_an_empty_answer_stays_empty_and_is_asked_again(translate: Translate, table: Path) -> None:
    expected = {text: ENGLISH[text] for text in ASKED}
    empty_queries = {ASKED[0], ASKED[5]}
    with Chat(lambda prompt: " \n" if query_of(prompt) in empty_queries else knows(prompt)) as server:
        done = translate(server.url)
        assert "2 answers are empty; run again" in done.stderr and done.stdout.startswith("4 of 6 queries")
        assert translations(table) == expected | dict.fromkeys(empty_queries, "")
        server.answer = knows
        translate(server.url)
        assert set(asked(server)[6:]) == empty_queries and len(server.asked) == 8
        assert translations(table) == expected


def test_a_refused_request_keeps_the_earlier_answers(translate: Translate, table: Path) -> None:
    with Chat(lambda prompt: 400) as server:
        # One request at a time, so that none is on its way afterwards.
        assert translate(server.url, "--parallel", 1, code=1).error.startswith(f"{server.url}: answered 400")
        assert names(table.parent) == ["release"]  # nothing was answered
        server.asked.clear()
        server.answer = lambda prompt: 400 if len(server.asked) > 3 else knows(prompt)
        assert translate(server.url, "--parallel", 1, code=1).error.endswith("; 3 translations are saved")
        answered_queries = asked(server)[:3]
        server.answer = knows
        server.asked.clear()
        translate(server.url)
        assert sorted(answered_queries + asked(server)) == sorted(ASKED)
        assert not table.with_name(".machine.tsv.building").exists()
    assert translations(table) == {text: ENGLISH[text] for text in ASKED}


def test_answers_of_a_killed_command_are_not_asked_for_again(translate: Translate, table: Path) -> None:
    late_queries = ASKED[:2]
    command_is_killed = threading.Event()

    def answer(prompt: str) -> Answer:
        if query_of(prompt) in late_queries and not command_is_killed.is_set():
            command_is_killed.wait(300)
            return 503
        return knows(prompt)

    def count_saved_answers() -> int:
        paths = table.parent.glob(".machine.tsv.building/*/*.tsv")
        return sum(path.read_bytes().count(b"\n") for path in paths)

    with Chat(answer) as server:
        options = ["--release", table.parent / "release", "--split", "train", "dev", "--model", "llm-7b"]
        command_words = command("builders", "annotate", "translate", options, "--out", table)
        environment = os.environ | {"OPENAI_BASE_URL": server.url}
        process = subprocess.Popen(command_words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        while len(server.asked) < 6 or count_saved_answers() < 4:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        command_is_killed.set()
        assert not table.exists()
        translate(server.url)
        assert sorted(asked(server)[6:]) == sorted(late_queries)
    assert translations(table) == {text: ENGLISH[text] for text in ASKED}


def test_another_table_and_a_missing_address_are_one_line(translate: Translate, table: Path) -> None:
    expected = "error: expected an address in OPENAI_BASE_URL (http://localhost:8000/v1), or use --local\n"
    assert translate("", code=1).stderr == expected and not table.exists()
    error = translate("", "--out", table.with_suffix(".json"), code=1).error
    assert error == f"{table.with_suffix('.json')}: expected a name that ends in .tsv"
    row = {"id": md5(ASKED[0]), "zh": ASKED[0], "machine_translation": "mine"}
    for changed_row, error_start in (
        (row | {"model": "other"}, f"{table}: has translations by 'other'; choose another --out for 'llm-7b'"),
        (row, f"{table}: has no column model; expected a table of this command, or a new path"),
        (row | {"id": "x", "model": "llm-7b"}, f"{table}: has a query 'x' that {table.parent / 'release'} lacks; "),
    ):
        fill(table, [changed_row])
        content = table.read_bytes()
        assert translate("http://127.0.0.1:9", code=1).error.startswith(error_start)
        assert table.read_bytes() == content


def test_a_table_of_other_texts_with_the_same_ids_is_refused(translate: Translate, table: Path) -> None:
    rows = tables()
    rows["queries", "dev"] = [{"_id": "q1", "text": "北京几点天亮"}]
    make_release(table.parent / "release", rows)
    with Chat(lambda prompt: "When is sunrise in Beijing") as server:
        translate(server.url, splits=["dev"])
    before = table.read_bytes()
    rows["queries", "dev"] = [{"_id": "q1", "text": "上海几点天黑"}]
    make_release(table.parent / "release", rows)
    error = translate("http://127.0.0.1:9", splits=["dev"], code=1).error
    assert error.startswith(
        f"{table}: has the query 'q1' with the text '北京几点天亮', but {table.parent / 'release'} with"
    )
    assert error.endswith("'上海几点天黑'; the table is of another release; choose another --out")
    assert table.read_bytes() == before


def test_saved_answers_of_other_texts_with_the_same_ids_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.tsv"
    path.write_text(_saved_line("q1", "几点天亮", "When is sunrise") + _saved_line("q2", "谁", "Who") + "q3\tcut")
    assert _saved_answers(path, {"q1": "几点天黑", "q2": "谁", "q3": "哪里"}) == {"q2": "Who"}


def test_machine_translations_go_to_people_or_into_the_set_and_are_counted(translate: Translate, table: Path) -> None:
    release = table.parent / "release"
    packages = table.with_name("packages.tsv")
    with Chat(knows) as server:
        translate(server.url)
    options = ("--split", "dev", "--translations", table, "--out", packages)
    run("builders", "annotate", "translations", "export", "--release", release, options)
    rows = sheet_rows(packages)
    assert sorted(row["zh"] for row in rows) == sorted(QUESTIONS["dev"])
    for row in rows:
        assert row["machine_translation"] == row["english"] == ENGLISH[row["zh"]]
    rows[0]["english"] = "Corrected by people"
    fill(packages, rows)
    for source, machine in ((table, 6), (packages, 1)):
        out = table.with_name(f"with-{source.stem}")
        done = run("builders", "add", "crosslingual", "--source", source, "--release", release, "--out", out)
        assert f"{machine} English texts are a model's translations that nobody changed" in done.stderr
        assert json.loads((out / "stats.json").read_text("utf-8"))["crosslingual"]["machine"] == machine
        assert f"\n{machine} of the English queries are a model's trans" in (out / "README.md").read_text("utf-8")


def test_a_local_model_gives_what_its_library_generates(table: Path) -> None:
    import torch
    from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

    texts = []
    for text in ASKED:
        texts += [f"{text}{number}" for number in range(3)]  # more than a batch
    rows = tables()
    rows["queries", "dev"] = [{"_id": md5(text), "text": text} for text in texts]
    make_release(table.parent / "release", rows)
    tokenizer = AutoTokenizer.from_pretrained(write_bert(table.parent / "bart", texts))
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 2, "d_model": 16}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), init_std=1.0, **heads, **ids)).eval()
    model.generation_config.min_new_tokens = 20
    model.save_pretrained(table.parent / "bart")
    command_words = ["annotate", "translate", "--local", "--release", table.parent / "release"]
    run("builders", command_words, "--out", table, "--model", table.parent / "bart")
    translations_by_text = {row["zh"]: row["machine_translation"] for row in sheet_rows(table)}
    assert list(translations_by_text) == texts
    for text in texts:
        tokens = model.generate(tokenizer([text], return_tensors="pt").input_ids, max_new_tokens=128, do_sample=False)
        expected_words = tokenizer.decode(tokens[0], skip_special_tokens=True).split()
        assert translations_by_text[text].split() == expected_words != []
    bert = write_bert(table.parent / "bert")
    error = run("builders", command_words, "--out", table.with_name("other.tsv"), "--model", bert, code=1).error
    assert error.startswith(f"{bert}: no sequence-to-sequence model (")
