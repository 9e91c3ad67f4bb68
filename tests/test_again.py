"""Verbs called again: a finished output is returned, another call says what changed, a killed call resumes."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from builders.core.cache import cached_sha256
from builders.core.errors import InputError
from builders.core.finished_outputs import (
    UNKNOWN,
    NotFinished,
    VerbCall,
    VerbInput,
    file_input,
    find_finished,
    is_kept,
    only_if_finished,
    option_values,
    record_finished,
    record_path,
)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# The function that all verbs use.


def tea(*, cups: int = 2, version: int = 1, leaf: str = "1f", milk: str = "a0") -> VerbCall:
    inputs = {"leaf": VerbInput("the leaf", {"": leaf}), "milk": VerbInput("the milk M", {"fat": milk, "age": "3"})}
    return VerbCall("brew", version, {"cups": cups, "pot": {"lid": True, "size": 1.5}}, inputs)


@pytest.fixture
def pot(tmp_path: Path) -> Path:
    """A finished output: a file with a manifest."""
    out = tmp_path / "pot"
    out.write_text("tea")
    out.with_name("pot.manifest.json").write_text("{}")
    record_finished(out, tea(), files=[out, out.with_name("pot.manifest.json")], result={"sips": 9})
    return out


def reason_of(out: Path, call: VerbCall) -> str:
    with only_if_finished(), pytest.raises(NotFinished) as error:
        find_finished(out, call, again=False)
    return str(error.value).removeprefix(f"{out}: ")


def test_an_equal_call_finds_the_output_and_its_values(pot: Path, caplog: pytest.LogCaptureFixture) -> None:
    finished = find_finished(pot, tea(), again=False)
    assert finished is not None and finished.result == {"sips": 9}
    assert caplog.messages == [f"{pot}: already done; --again repeats the work"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cups": 3}, "cups: 2 -> 3"),
        ({"version": 2}, "version of brew: 1 -> 2"),
        ({"leaf": "2f"}, "the leaf changed"),
        ({"milk": "b0"}, "the milk M changed (fat)"),
        ({"cups": 3, "leaf": "2f"}, "cups: 2 -> 3; the leaf changed"),
    ],
)
def test_another_call_says_what_changed(
    pot: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    assert find_finished(pot, tea(**change), again=False) is None
    assert caplog.messages == [f"{pot}: made again, because {reason}"]


def test_options_and_inputs_that_come_and_go_are_named(pot: Path) -> None:
    call = VerbCall("brew", 1, {"cups": 2, "pot": {"lid": None}}, {"leaf": VerbInput("the leaf", {"": "1f"})})
    assert reason_of(pot, call) == "pot.lid: true -> default; pot.size: 1.5 -> default; without milk"
    call = VerbCall("brew", 1, tea().options, {**tea().inputs, "ice": VerbInput("the ice", {})})
    assert reason_of(pot, call) == "with the ice"
    assert reason_of(pot, VerbCall("boil", 1, {}, {})) == "brew made it"


def test_an_unknown_hash_is_taken_for_the_recorded_one_with_a_warning(
    pot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = {**tea().inputs, "milk": VerbInput("the milk M", {"fat": UNKNOWN, "age": "3"}, "no cow answers")}
    assert find_finished(pot, VerbCall("brew", 1, tea().options, inputs), again=False)
    assert caplog.messages[0] == f"no cow answers; continuing, because {pot} was made with the fat a0"
    record_path(pot).unlink()
    assert find_finished(pot, VerbCall("brew", 1, tea().options, inputs), again=False) is None


def test_a_damaged_or_missing_file_of_the_output_is_named(pot: Path) -> None:
    pot.write_text("Tea")
    assert reason_of(pot, tea()) == "pot differs from the file that was made"
    pot.write_text("tea")
    pot.with_name("pot.manifest.json").unlink()
    assert reason_of(pot, tea()) == "pot.manifest.json is missing"
    pot.unlink()
    assert reason_of(pot, tea()) == "is not made yet"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "another"}', "\0"])
def test_a_damaged_record_is_no_record(pot: Path, content: str) -> None:
    record_path(pot).write_text(content)
    assert find_finished(pot, tea(), again=False) is None
    record_finished(pot, tea())
    assert find_finished(pot, tea(), again=False)


def test_again_runs_in_any_case_and_says_nothing(pot: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_finished(pot, tea(), again=True) is None
    assert caplog.messages == []


def test_a_directory_has_all_its_files_but_hidden_ones(tmp_path: Path) -> None:
    out = tmp_path / "pots"
    (out / "a").mkdir(parents=True)
    (out / "a" / "lid").write_text("lid")
    (out / ".lock").touch()
    record_finished(out, tea())
    (out / ".lock").unlink()
    (out / "foreign").touch()
    assert find_finished(out, tea(), again=False)
    (out / "a" / "lid").unlink()
    assert reason_of(out, tea()) == "pots/a/lid is missing"


def test_streams_and_results_in_memory_are_not_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for out in (None, Path("/dev/stdout"), Path("-"), tmp_path / "pipe"):
        assert not is_kept(out)
        assert find_finished(out, None, again=False) is None
        record_finished(out, None)
        with only_if_finished(), pytest.raises(NotFinished):
            find_finished(out, None, again=False)
    assert is_kept(tmp_path / "pot") and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_to_an_output_is_that_output(pot: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(pot)
    assert find_finished(tmp_path / "other" / "link", tea(), again=False)


def test_all_arguments_are_recorded_but_inputs_and_exceptions() -> None:
    arguments = {"release": Path("r"), "out": Path("o"), "again": True, "top_k": 5, "files": ("a",), "threads": 2}
    inputs = {"release": VerbInput("the release r", {})}
    assert option_values(arguments, inputs, without=["threads"]) == {"top_k": 5, "files": ["a"]}


def test_a_missing_input_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lost: cannot be read"):
        file_input("the file", tmp_path / "lost")


@pytest.mark.usefixtures("settled")
def test_an_unchanged_file_is_hashed_once_and_a_changed_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    first = cached_sha256(path)
    monkeypatch.setattr("builders.core.cache._checksums", {})  # another process
    with monkeypatch.context() as patch:
        patch.setattr("builders.core.cache.sha256_of", lambda _: pytest.fail("the file is read"))
        assert cached_sha256(path) == first
    path.write_text("b")
    assert cached_sha256(path) == hashlib.sha256(b"b").hexdigest() != first


@pytest.mark.usefixtures("settled")
def test_a_cut_checksum_in_the_cache_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    first = cached_sha256(path)
    (note,) = (tmp_path / "cache" / "dureader_retrieval" / "checked").iterdir()
    note.write_text(first[:9])
    monkeypatch.setattr("builders.core.cache._checksums", {})
    assert cached_sha256(path) == first == note.read_text()
