"""Models that several threads load, and indexes that several calls write."""

import logging
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from commands import ROOT
from releases import make_release
from tiny_models import write_bert, write_dual
from transformers import BertModel, PreTrainedModel
from transformers.utils.logging import enable_progress_bar, is_progress_bar_enabled

from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import work_of
from baselines.retrieve.models import expect_weights, open_encoder
from baselines.retrieve.vector_index import MANIFEST, VectorIndex, open_retriever
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import dual_encoder
from builders.core.errors import InputError
from builders.core.folders import replace_directory, work_beside
from builders.store.reader import Release, open_release

pytestmark = pytest.mark.usefixtures("own_cache")


def test_starts_of_trainings_in_threads_leave_the_libraries_as_they_are(tmp_path: Path) -> None:
    recipe = read_recipe("de-bm25-neg-scratch", ["data.passage_length=64"])
    start = write_bert(tmp_path / "bert")
    # While a model is loaded, these functions of the libraries are replaced.
    functions_before = (PreTrainedModel.__dict__["tie_weights"], torch.linspace, torch.nn.init.normal_)

    def open_several() -> None:
        for _ in range(8):
            dual_encoder(recipe, str(start), "cpu")

    threads = [threading.Thread(target=open_several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    functions_after = (PreTrainedModel.__dict__["tie_weights"], torch.linspace, torch.nn.init.normal_)
    assert functions_after == functions_before


def test_a_loaded_model_does_not_turn_off_the_users_progress_bars(tmp_path: Path) -> None:
    enable_progress_bar()
    open_encoder(ModelSettings(str(write_dual(tmp_path / "dual"))))
    assert is_progress_bar_enabled()


def test_the_marks_of_quantised_weights_are_not_needed(tmp_path: Path) -> None:
    model = BertModel.from_pretrained(write_bert(tmp_path / "bert"))
    layer = model.encoder.layer[0].attention.self.query
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)  # as a quantiser does
    with pytest.raises(InputError, match=r"lack 1 of its weights: encoder\.layer\.0\.attention\.self\.query\.weight"):
        expect_weights("model", model, lambda *_: False)
    model.is_quantized = True
    expect_weights("model", model, lambda *_: False)
    del model.embeddings.LayerNorm.weight._is_hf_initialized
    with pytest.raises(InputError, match=r"lack 1 of its weights: embeddings\.LayerNorm\.weight"):
        expect_weights("model", model, lambda *_: False)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    make_release(tmp_path / "release")
    return open_release(tmp_path / "release")


def build_index(model: Path, release: Release, out: Path) -> VectorIndex:
    """Write the index of the release's passages to ``out``, or open the index that is there."""
    return open_retriever(ModelSettings(str(model)), work_of("cpu", "fp32")).index(release, "corpus", out)


def wait_for_waiting(call: "Future[VectorIndex]", caplog: pytest.LogCaptureFixture) -> None:
    """Return when ``call`` waits for the lock of its index."""
    # getMessage, because another thread adds a record before it formats the record's attribute ``message``.
    while not any(record.getMessage().startswith("waiting for another process") for record in caplog.records):
        assert not call.done()
        time.sleep(0.01)


@pytest.mark.parametrize("has_other_model", [False, True])
def test_an_index_that_another_call_has_finished_is_used_or_kept(
    has_other_model: bool, release: Release, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = write_dual(tmp_path / "model")
    out = tmp_path / "out"
    finished = build_index(model, release, tmp_path / "finished").path
    manifest = (finished / MANIFEST).read_bytes()
    late_model = write_dual(tmp_path / "late", seed=1) if has_other_model else model
    with ThreadPoolExecutor(1) as pool:
        with work_beside(out) as work:
            late_call = pool.submit(build_index, late_model, release, out)
            wait_for_waiting(late_call, caplog)
            shutil.copytree(finished, work, dirs_exist_ok=True)
            replace_directory(work, out)
        if has_other_model:
            with pytest.raises(InputError, match="out: was just written by another call with other inputs"):
                late_call.result()
        else:
            assert late_call.result().path == out
    assert (out / MANIFEST).read_bytes() == manifest
    assert sum(record.message.startswith("waiting for") for record in caplog.records) == 1
    assert build_index(late_model, release, out).rows == release.rows("corpus", "corpus")  # no call was there meanwhile


KILLED = """
import sys, time
from pathlib import Path
from builders.core.folders import work_beside
with work_beside(Path(sys.argv[1]), "key"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_waiting_call_builds_the_index_if_the_other_process_is_killed(
    release: Release, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = write_dual(tmp_path / "model")
    out = tmp_path / "out"
    builder = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert builder.stdout is not None and builder.stdout.readline() == "locked\n"
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(build_index, model, release, out)
        try:
            wait_for_waiting(call, caplog)
        finally:
            builder.kill()  # otherwise the pool would wait for the call without end
            builder.communicate()
        assert call.result(timeout=300).rows == release.rows("corpus", "corpus")
