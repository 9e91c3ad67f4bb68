"""Scripts of users: without a main guard, from stdin, in threads, in several processes, and with a read-only home."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, run
from releases import make_release
from tiny_models import write_cross, write_dual
from transformers import PreTrainedModel

from baselines import InputError, evaluate, search
from builders.core.jobs import LastResult

PLAIN = "from baselines import evaluate\nprint(evaluate('bm25', 'RELEASE')['recall@50'])\n"
MANY = 10_100  # passages; from 10,000 on, several processes segment the passages


@pytest.fixture(scope="module")
def many_passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of enough passages to start worker processes."""
    folder = tmp_path_factory.mktemp("many")
    rows = []
    for number in range(MANY // 5):
        paragraphs = [f"第{number}个问题的答案在第{page}页，说的是{number}号线的{page}号站。" for page in range(5)]
        document = {"title": "", "paragraphs": paragraphs, "is_selected": True, "most_related_para": 0}
        row = {"question_id": number, "question": f"{number}号线", "question_type": "ENTITY"}
        row |= {"fact_or_opinion": "FACT", "answers": [paragraphs[0]], "documents": [document]}
        rows.append(row)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "dev.json").write_text(lines, encoding="utf-8")
    run("builders", "release", "--dev", folder / "dev.json", "--out", folder / "release", "--min-chars", 1)
    return folder / "release"


SLOW_WAYS = [pytest.param(way, marks=pytest.mark.slow) for way in ("file", "-c")]


@pytest.mark.parametrize("way", ["stdin", *SLOW_WAYS])
def test_a_script_without_a_main_guard_runs_once_and_ends(way: str, many_passages: Path, tmp_path: Path) -> None:
    script = PLAIN.replace("RELEASE", str(many_passages))
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    words = {"file": [tmp_path / "script.py"], "stdin": ["-"], "-c": ["-c", script]}[way]
    done = subprocess.run(
        [sys.executable, *words],
        input=script if way == "stdin" else "",
        capture_output=True,
        text=True,
        timeout=600,  # before the change, the script hung
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert [float(line) for line in done.stdout.split()] == [1.0]
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("own_cache")
def test_threads_get_the_results_of_calls_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    release = make_release(tmp_path / "release")
    models = [write_dual(tmp_path / name) for name in ("one", "two")]
    first_stage = search("bm25", release)
    on_cpu: dict[str, Any] = {"device": "cpu", "dtype": "fp32"}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (models[0], on_cpu),
        (models[0], on_cpu | {"similarity": "cosine"}),
        (models[1], on_cpu | {"query_prompt": "问："}),
        (write_cross(tmp_path / "cross"), on_cpu | {"run": first_stage}),
    ]
    expected = [search(model, release, **options) for model, options in calls]
    for attempt in ("cold", "warm"):
        if attempt == "cold":
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cold"))
        results: list[Any] = [None] * len(calls)
        replacements: list[Any] = []

        def work(number: int, results: list[Any] = results) -> None:
            model, options = calls[number]
            results[number] = search(model, release, **options)

        original = PreTrainedModel.__dict__["from_pretrained"]
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            current = PreTrainedModel.__dict__["from_pretrained"]
            if current is not original:
                replacements.append(current)
            time.sleep(0.001)
        assert results == expected, attempt
        assert not replacements  # a library's function is never replaced


def test_a_thread_keeps_its_own_last_result() -> None:
    opened: list[int] = []

    def open_model(number: int) -> str:
        opened.append(number)
        return f"model {number}"

    open_once = LastResult(open_model)
    assert [open_once(1), open_once(1), open_once(2), open_once(1)] == ["model 1", "model 1", "model 2", "model 1"]
    assert opened == [1, 2, 1]
    thread = threading.Thread(target=open_once, args=(1,))
    thread.start()
    thread.join()
    assert opened == [1, 2, 1, 1]
    open_once.cache_clear()
    assert open_once(1) == "model 1"
    assert opened == [1, 2, 1, 1, 1]


@pytest.mark.slow
def test_processes_that_need_the_same_index_wait(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    model = write_dual(tmp_path / "model")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    processes = []
    for number in range(4):
        words = ["run", model, "--release", release, "--out", tmp_path / f"{number}.run", "--device", "cpu"]
        command = [sys.executable, "-m", "baselines", *map(str, words)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        processes.append(process)
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    assert len({(tmp_path / f"{number}.run").read_bytes() for number in range(4)}) == 1


@pytest.mark.parametrize("cache_home", ["file", "/proc/nowhere"])
def test_a_cache_that_cannot_be_written_is_one_error(
    cache_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = make_release(tmp_path / "release")
    (tmp_path / "file").write_text("", encoding="utf-8")
    # An absolute path stays itself when it is joined to another.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache_home))

    def encode(texts: list[str]) -> list[list[float]]:
        return [[1.0, len(text)] for text in texts]

    for model in ("bm25", encode, write_dual(tmp_path / "model")):
        with pytest.raises(InputError, match="set DUREADER_RETRIEVAL_CACHE to a folder that can be written"):
            evaluate(model, release)
