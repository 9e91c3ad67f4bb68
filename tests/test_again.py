"""Verbs called again: a finished output is returned, another call says what changed, a killed call resumes."""

import hashlib
import importlib
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, tree
from loaded import Loaded
from official_archives import ORIGINAL, original_files, write_files
from releases import QUESTIONS, TEXTS, make_release, md5, raw_row, tables, write_rows
from tiny_models import write_bert, write_cross, write_dual

import baselines
import builders
from baselines.retrieve.model_files import model_hashes
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
from builders.core.locks import hold_lock
from builders.core.verbs import verb_spec
from builders.store.runs import Run, read_run, write_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# The function that all verbs use.


def tea(*, cups: int = 2, version: int = 1, leaf: str = "1f", milk: str = "a0") -> VerbCall:
    """Return a call of a verb `brew` with two inputs, whose hashes are ``leaf`` and ``milk``."""
    leaf_input = VerbInput("the leaf", {"": leaf})
    milk_input = VerbInput("the milk M", {"fat": milk, "age": "3"})
    options = {"cups": cups, "pot": {"lid": True, "size": 1.5}}
    return VerbCall("brew", version, options, {"leaf": leaf_input, "milk": milk_input})


@pytest.fixture
def pot(tmp_path: Path) -> Path:
    """A finished output: a file with a manifest."""
    out = tmp_path / "pot"
    out.write_text("tea")
    out.with_name("pot.manifest.json").write_text("{}")
    record_finished(out, tea(), files=[out, out.with_name("pot.manifest.json")], result={"sips": 9})
    return out


def reason_of(out: Path, call: VerbCall) -> str:
    """Return why an output is not the finished output of a call."""
    with only_if_finished(), pytest.raises(NotFinished) as error:
        find_finished(out, call, again=False)
    return str(error.value).removeprefix(f"{out}: ")


def test_an_equal_call_finds_the_output_and_its_values(pot: Path, caplog: pytest.LogCaptureFixture) -> None:
    finished = find_finished(pot, tea(), again=False)
    assert finished is not None and finished.result == {"sips": 9}
    assert caplog.messages == [f"{pot}: already done; --again repeats the work"]


def test_work_of_a_killed_call_beside_a_finished_output_is_removed_unless_it_is_in_use(pot: Path) -> None:
    work_folder = pot.with_name(".pot.building") / "key"
    work_folder.mkdir(parents=True)
    with hold_lock(work_folder.parent, pot):
        assert find_finished(pot, tea(), again=False)
        assert work_folder.exists()
    assert find_finished(pot, tea(), again=False)
    assert not work_folder.parent.exists()


@pytest.mark.parametrize("name", ["pot", "pot.manifest.json", ".pot.made.json"])
def test_a_file_and_a_lock_of_a_killed_call_beside_a_finished_output_are_removed(pot: Path, name: str) -> None:
    names_before = sorted(os.listdir(pot.parent))
    unfinished_file = pot.with_name(f".{name}.tmp")
    unfinished_file.write_text("half")
    with hold_lock(unfinished_file, pot):
        assert find_finished(pot, tea(), again=False)
        assert unfinished_file.exists()  # in use
    assert find_finished(pot, tea(), again=False)
    # A lock without a file: the call was killed after the file had become the output.
    pot.with_name(f".{name.lstrip('.')}.tmp.lock").touch()
    assert find_finished(pot, tea(), again=False)
    assert sorted(os.listdir(pot.parent)) == names_before


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
    black_tea = VerbCall("brew", 1, {"cups": 2, "pot": {"lid": None}}, {"leaf": VerbInput("the leaf", {"": "1f"})})
    assert reason_of(pot, black_tea) == "pot.lid: true -> default; pot.size: 1.5 -> default; without milk"
    iced_tea = VerbCall("brew", 1, tea().options, {**tea().inputs, "ice": VerbInput("the ice", {})})
    assert reason_of(pot, iced_tea) == "with the ice"
    assert reason_of(pot, VerbCall("boil", 1, {}, {})) == "brew made the earlier output"


def test_an_unknown_hash_is_taken_for_the_recorded_one_with_a_warning(
    pot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown_milk = VerbInput("the milk M", {"fat": UNKNOWN, "age": "3"}, InputError("no cow answers"))
    inputs = {**tea().inputs, "milk": unknown_milk}
    assert find_finished(pot, VerbCall("brew", 1, tea().options, inputs), again=False)
    assert caplog.messages[0] == f"no cow answers; continuing, because {pot} was made with the fat a0"
    with pytest.raises(InputError, match="no cow answers"):
        find_finished(pot, VerbCall("brew", 2, tea().options, inputs), again=False)


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
    link = tmp_path / "other" / "link"
    link.parent.mkdir()
    link.symlink_to(pot)
    assert find_finished(link, tea(), again=False)


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
    first_checksum = cached_sha256(path)
    monkeypatch.setattr("builders.core.cache._checksums_here", {})  # another process
    with monkeypatch.context() as patch:
        patch.setattr("builders.core.cache.sha256_of", lambda _: pytest.fail("the file is read"))
        assert cached_sha256(path) == first_checksum
    path.write_text("b")
    assert cached_sha256(path) == hashlib.sha256(b"b").hexdigest() != first_checksum


@pytest.mark.usefixtures("settled")
def test_a_cut_checksum_in_the_cache_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    first_checksum = cached_sha256(path)
    (cache_file,) = (tmp_path / "cache" / "dureader_retrieval" / "checked").iterdir()
    cache_file.write_text(first_checksum[:9])
    monkeypatch.setattr("builders.core.cache._checksums_here", {})
    assert cached_sha256(path) == first_checksum == cache_file.read_text()


# The nine verbs. Every test gets a folder of its own with the verbs' input, which the test may change.


@pytest.fixture(scope="module")
def made_input(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, tiny models, a run, raw rows and official files, and the embeddings of the passages."""
    folder = tmp_path_factory.mktemp("input")
    make_release(folder / "release")
    train_rows = [
        raw_row(1, "饺子怎么煮", [[TEXTS[1]]], [TEXTS[1]]),
        raw_row(2, "北京冬天冷吗", [[TEXTS[0]]], [TEXTS[0]]),
    ]
    write_rows(folder / "raw" / "search.train.json", train_rows)
    write_rows(folder / "raw" / "search.dev.json", [raw_row(3, "高铁票提前几天买", [[TEXTS[4]]], [TEXTS[4]])])
    write_files(folder / "official", original_files())
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    write_bert(folder / "bert")
    # Both runs rank the passages in the order of TEXTS for each question.
    hits = [(md5(text), 1 / rank) for rank, text in enumerate(TEXTS, 1)]
    for split in ("train", "dev"):
        write_run(folder / f"{split}.run", [(md5(question), hits) for question in QUESTIONS[split]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        baselines.encode_texts(folder / "release", model=folder / "dual", out=folder / "passages", device="cpu")
    shutil.rmtree(folder / "cache")
    return folder


@pytest.fixture
def world(made_input: Path, tmp_path: Path) -> Path:
    """A copy of the verbs' input."""
    return Path(shutil.copytree(made_input, tmp_path / "world"))


def edit_json(path: Path, **values: Any) -> None:
    """Set values of a JSON file."""
    content = json.loads(path.read_text("utf-8")) | values
    path.write_text(json.dumps(content), encoding="utf-8")


def add_passage(world: Path) -> None:
    """Replace the release by a release with another passage."""
    shutil.rmtree(world / "release")
    make_release(world / "release", tables([*TEXTS, "新的段落。"]))


def drop_first_hits(run_name: str) -> Callable[[Path], None]:
    """Return a change that removes the first hit of every query of a run."""

    def change(world: Path) -> None:
        hits = read_run(world / run_name).hits
        write_run(world / run_name, [(query_id, ranking[1:]) for query_id, ranking in hits.items()])

    return change


def change_activation(model_name: str) -> Callable[[Path], None]:
    """Return a change of a model's activation function."""
    return lambda world: edit_json(world / model_name / "config.json", hidden_act="relu")


def change_casing(world: Path) -> None:
    """Let the tokenizer of the dual-encoder keep upper case."""
    edit_json(world / "dual" / "tokenizer_config.json", do_lower_case=False)


def change_embeddings(world: Path) -> None:
    """Correct the model, and encode the passages again."""
    change_activation("dual")(world)
    baselines.encode_texts(world / "release", model=world / "dual", out=world / "passages", device="cpu")


def replace_raw_rows(world: Path) -> None:
    """Replace the raw rows of dev."""
    write_rows(world / "raw" / "search.dev.json", [raw_row(7, "手机进水怎么办", [[TEXTS[5]]], [TEXTS[5]])])


def keep_one_official_question(world: Path) -> None:
    """Remove all official dev questions but the first."""
    path = world / "official" / ORIGINAL / "dev.json"
    first_line = path.read_text("utf-8").splitlines(keepends=True)[0]
    path.write_text(first_line, encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """A verb with tiny input.

    Attributes:
        function: name of the verb's function.
        verb: the verb on the command line.
        arguments: arguments by name. ``{world}`` stands for the folder of the input.
        option: another value of an option, and the message.
        change: changes an input.
        change_message: part of the message about the changed input.
        module: the module with the verb's version.
        work: the function that a finished output must not reach.
        name: name of the output.
    """

    function: str
    verb: str
    arguments: dict[str, Any]
    option: tuple[dict[str, Any], str]
    change: Callable[[Path], None]
    change_message: str
    module: str
    work: str
    name: str = "out"
    neutral: dict[str, Any] = field(default_factory=dict)  # options that change no result

    def call(self, world: Path, out: Path, **changes: Any) -> Any:
        """Call the verb's function on the input in ``world``. ``changes``: other arguments."""
        arguments = put_paths(self.arguments, world)
        return self.load_function()(**arguments | {"out": out} | changes)

    def load_function(self) -> Any:
        """Return the verb's function."""
        program = builders if hasattr(builders, self.function) else baselines
        return getattr(program, self.function)


def put_paths(arguments: dict[str, Any], world: Path) -> dict[str, Any]:
    """Replace ``{world}`` in arguments by the path of the input's folder."""
    arguments_in_json = json.dumps(arguments).replace("{world}", str(world))
    return json.loads(arguments_in_json)


RELEASE = "{world}/release"
NO_CLUSTER = "127.0.0.1:1"  # no server listens there
TINY_RECIPE = [
    "train.batch=4",
    "train.max_steps=2",
    "train.evaluations=0",
    "data.passage_length=24",
    "data.query_length=12",
    "data.negatives_per_positive=0",
    "train.saves=2",
]
CASES = {
    "bm25": Case(
        "search_bm25",
        "baselines bm25",
        {"release": RELEASE},
        ({"top_k": 3}, "top_k: 50 -> 3"),
        add_passage,
        "the release {world}/release changed (corpus/corpus)",
        "baselines.bm25.search_bm25",
        "baselines.bm25.engine_numba.open_index",
        neutral={"threads": 1},
    ),
    "mine": Case(
        "mine_negatives",
        "baselines mine",
        {"release": RELEASE, "run": "{world}/train.run"},
        ({"negatives": 1}, "negatives: 4 -> 1"),
        drop_first_hits("train.run"),
        "the run {world}/train.run changed",
        "baselines.train.mine",
        "baselines.train.hard_negatives.write_negatives",
    ),
    "train": Case(
        "train_model",
        "baselines train",
        {
            "recipe": "de-bm25-neg-scratch",
            "release": RELEASE,
            "start": "{world}/bert",
            "set": TINY_RECIPE,
            "device": "cpu",
        },
        ({"set": [*TINY_RECIPE, "train.seed=7"]}, "recipe.train.seed: 0 -> 7"),
        change_activation("bert"),
        "the model {world}/bert changed (config.json)",
        "baselines.train.training_job",
        "baselines.train.training.train_checkpoint",
    ),
    "encode": Case(
        "encode_texts",
        "baselines encode",
        {"release": RELEASE, "model": "{world}/dual", "device": "cpu"},
        ({"max_length": 9}, "max_length: default -> 9"),
        change_casing,
        "the model {world}/dual changed (tokenizer_config.json)",
        "baselines.retrieve.encode",
        "baselines.retrieve.models.open_as",
        neutral={"tokenizers": 0, "engine": "ray", "ray_address": NO_CLUSTER},
    ),
    "search": Case(
        "search_vectors",
        "baselines search",
        {"release": RELEASE, "model": "{world}/dual", "passages": "{world}/passages", "device": "cpu"},
        ({"top_k": 3}, "top_k: 50 -> 3"),
        change_embeddings,
        "the model {world}/dual changed (config.json); the directory {world}/passages changed",
        "baselines.retrieve.search_vectors",
        "baselines.retrieve.models.open_as",
        neutral={"engine": "torch"},
    ),
    "rerank": Case(
        "rerank_run",
        "baselines rerank",
        {"release": RELEASE, "model": "{world}/cross", "run": "{world}/dev.run", "device": "cpu"},
        ({"top_k": 3}, "top_k: 50 -> 3"),
        drop_first_hits("dev.run"),
        "the run {world}/dev.run changed",
        "baselines.retrieve.rerank",
        "baselines.retrieve.models.open_as",
        neutral={"tokenizers": 0, "engine": "ray", "ray_address": NO_CLUSTER},
    ),
    "run": Case(
        "run_model",
        "baselines run",
        {"model": "{world}/dual", "release": RELEASE, "device": "cpu"},
        ({"query_prompt": "问："}, "query_prompt: default -> 问："),
        change_activation("dual"),
        "the model {world}/dual changed (config.json)",
        "baselines.retrieve.any_model",
        "baselines.retrieve.models.open_as",
        neutral={"tokenizers": 0, "engine": "ray", "ray_address": NO_CLUSTER},
    ),
    "release": Case(
        "build_release",
        "builders release",
        {"raw": ["{world}/raw"]},
        ({"min_chars": 20}, "min_chars: 256 -> 20"),
        replace_raw_rows,
        "the raw input changed (dev 2: search.dev.json)",
        "builders.release.build_release",
        "builders.release.build.build_from_raw",
        neutral={"workers": 1, "resume": False},
    ),
    "official": Case(
        "build_official",
        "builders official",
        {"archive": ["{world}/official"]},
        ({"skip_bad_lines": True}, "skip_bad_lines: false -> true"),
        keep_one_official_question,
        f"the official input changed (1: {ORIGINAL}/dev.json)",
        "builders.official.build_official",
        "builders.official.assembly.build_from_archives",
    ),
}
TO_STREAMS = ("bm25", "mine", "search", "run")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each verb with its input."""
    return CASES[request.param]


def refuse(*_: Any, **__: Any) -> None:
    """Fail, in place of a verb's work."""
    pytest.fail("the verb works")


def identity(out: Path) -> list[tuple[int, int]]:
    """Return inode and mtime of every file of an output."""
    paths = [out] if out.is_file() else sorted(out.rglob("*"))
    identities = []
    for path in paths:
        if path.is_file():
            identities.append((path.stat().st_ino, path.stat().st_mtime_ns))
    return identities


def content(out: Path) -> Any:
    """Return the content of an output, without files of a training that contain the duration."""
    if out.is_file():
        return out.read_bytes()
    checksums = tree(out)
    checksums.pop("training.json", None)
    checksums.pop("README.md", None)
    return checksums


def fresh_content(case: Case, world: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Return the content of an output of the same name that is made without any earlier output or cache."""
    folder = world.with_name("fresh")
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        case.call(world, folder / case.name, **changes)
    return content(folder / case.name)


def test_a_second_call_returns_the_finished_output(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / case.name
    first_result = case.call(world, out)
    identity_before = identity(out)
    caplog.clear()
    monkeypatch.setattr(case.work, refuse)
    second_result = case.call(world, out, **case.neutral)
    assert f"{out}: already done; --again repeats the work" in caplog.text
    assert identity(out) == identity_before
    assert type(second_result) is type(first_result)
    if isinstance(first_result, Run):
        assert second_result.hits == first_result.hits
    else:
        # A result is a path, or has the attribute ``path``.
        second_path = getattr(second_result, "path", second_result)
        first_path = getattr(first_result, "path", first_result)
        assert os.fspath(second_path) == os.fspath(first_path)


def test_local_paths_make_no_difference(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.call(world, tmp_path / case.name)
    new_folder = tmp_path / "moved"
    new_folder.mkdir()
    for path in (world, tmp_path / case.name, record_path(tmp_path / case.name)):
        path.rename(new_folder / path.name)
    manifest_path = tmp_path / f"{case.name}.manifest.json"
    if manifest_path.exists():
        manifest_path.rename(new_folder / manifest_path.name)
    monkeypatch.setattr(case.work, refuse)
    with only_if_finished():
        case.call(new_folder / "world", new_folder / case.name)


def test_another_option_is_named_and_obeyed(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / case.name
    case.call(world, out)
    changes, message = case.option
    case.call(world, out, **changes)
    assert f"{out}: made again, because {message}" in caplog.text
    assert content(out) == fresh_content(case, world, monkeypatch, **changes)


def test_another_input_is_named_and_read(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / case.name
    case.call(world, out)
    first_content = content(out)
    case.change(world)
    case.call(world, out)
    assert f"{out}: made again, because {case.change_message.format(world=world)}" in caplog.text
    assert content(out) == fresh_content(case, world, monkeypatch) != first_content


def test_a_new_version_of_the_result_is_made(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / case.name
    case.call(world, out)
    version = importlib.import_module(case.module).RESULT_VERSION
    monkeypatch.setattr(f"{case.module}.RESULT_VERSION", version + 1)
    message = f"version of {case.verb.split()[1]}: {version} -> {version + 1}"
    with only_if_finished(), pytest.raises(NotFinished, match=message):
        case.call(world, out)


def test_a_damaged_output_is_made_again(
    case: Case, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / case.name
    case.call(world, out)
    first_content = content(out)
    # Cut a file of the output: the run, the weights of the model, embeddings, or a shard.
    damaged_file = out if out.is_file() else out / "model.safetensors"
    if not damaged_file.exists():
        damaged_file = next(path for path in sorted(out.rglob("*")) if path.suffix in (".npy", ".parquet"))
    damaged_file.write_bytes(damaged_file.read_bytes()[:-1])
    case.call(world, out)
    assert "differs from the file that was made" in caplog.text
    assert content(out) == first_content


def test_again_repeats_the_work(case: Case, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / case.name
    case.call(world, out)
    first_identity = identity(out)
    first_content = content(out)
    caplog.clear()
    case.call(world, out, again=True)
    assert "already done" not in caplog.text and "resumed" not in caplog.text
    assert not set(identity(out)) & set(first_identity)
    assert content(out) == first_content


@pytest.mark.parametrize("name", TO_STREAMS)
def test_a_stream_is_written_at_every_call(
    name: str, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        CASES[name].call(world, Path("/dev/null"))
    assert "already done" not in caplog.text
    assert not record_path(Path("/dev/null")).exists()


def test_a_verb_that_is_not_finished_says_so_before_it_works(
    case: Case, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_before = tree(tmp_path).keys()
    monkeypatch.setattr(case.work, refuse)
    with only_if_finished(), pytest.raises(NotFinished, match="is not made yet"):
        case.call(world, tmp_path / case.name)
    new_files = tree(tmp_path).keys() - files_before
    assert [path for path in new_files if not path.startswith("cache/")] == []


# test_pool.py and test_export_training.py call these verbs again.
CALLED_AGAIN_ELSEWHERE = {"pool_passages", "export_release"}


def test_eleven_verbs_have_the_option_again() -> None:
    called_again = {case.function for case in CASES.values()} | CALLED_AGAIN_ELSEWHERE
    for program in (baselines, builders):
        for name in program.__all__:
            function = getattr(program, name)
            if hasattr(function, "verb"):
                has_option = "again" in inspect.signature(function).parameters
                assert has_option == (name in called_again), name


# How texts are sent to an endpoint.
REQUESTS = {"parallel", "request_texts", "request_characters", "encoding_format"}
# The machines that run a model.
MACHINES = {"engine", "ray_address", "task_cpus"}
# Parameters of verbs that no record has, because no result depends on them, or because they are recorded as inputs.
NEUTRAL = {
    "bm25": {"threads", "index", "address", "ca_certs", "queries_file"},
    "mine": {"tokenizers", *MACHINES},
    "encode": {"tokenizers", *MACHINES, *REQUESTS},
    "search": {"engine", "queries_file"},
    "rerank": {"tokenizers", "queries_file", *MACHINES, *REQUESTS},
    "run": {"tokenizers", "index", "queries_file", *MACHINES, *REQUESTS},
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_every_other_parameter_is_in_the_record(name: str, world: Path, tmp_path: Path) -> None:
    case = CASES[name]
    case.call(world, tmp_path / case.name)
    record = json.loads(record_path(tmp_path / case.name).read_text("utf-8"))
    parameters = {option.name for option in verb_spec(case.load_function()).options}
    recorded_names = record["options"].keys() | record["inputs"].keys()
    assert parameters - recorded_names == {"out", "again"} | NEUTRAL[name]
    assert str(tmp_path) not in json.dumps(record)


LIGHT = """
import sys
from pathlib import Path
import {program}
from builders.core.finished_outputs import only_if_finished
with only_if_finished():
    {program}.{function}(**{arguments!r})
print(sorted({{"torch", "transformers", "numba", "faiss"}} & {{*sys.modules}}))
"""


@pytest.mark.parametrize("name", ["mine", "train", "encode", "search", "rerank", "run"])
def test_no_model_library_is_imported_for_a_finished_output(name: str, world: Path, tmp_path: Path) -> None:
    case = CASES[name]
    case.call(world, tmp_path / case.name)
    arguments = put_paths(case.arguments, world)
    arguments["out"] = str(tmp_path / case.name)
    program = case.verb.split()[0]
    code = LIGHT.format(program=program, function=case.function, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Further inputs of some verbs.


def test_a_run_object_is_its_file(world: Path, tmp_path: Path) -> None:
    baselines.mine_negatives(world / "release", run=world / "train.run", out=tmp_path / "n.jsonl")
    with only_if_finished():
        baselines.mine_negatives(world / "release", run=read_run(world / "train.run"), out=tmp_path / "n.jsonl")


def test_a_run_in_memory_is_its_hits(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.jsonl"
    hits = read_run(world / "train.run").hits
    baselines.mine_negatives(world / "release", run=Run.in_memory("first", hits), out=out)
    with only_if_finished():
        baselines.mine_negatives(world / "release", run=Run.in_memory("second", hits), out=out)
        fewer_hits = {query_id: ranking[:3] for query_id, ranking in hits.items()}
        with pytest.raises(NotFinished, match="the run first changed"):
            baselines.mine_negatives(world / "release", run=Run.in_memory("first", fewer_hits), out=out)


def test_the_counts_of_finished_negatives_are_those_of_the_first_call(world: Path, tmp_path: Path) -> None:
    arguments = {"release": world / "release", "run": world / "train.run", "out": tmp_path / "n", "max_score": 0.4}
    assert baselines.mine_negatives(**arguments) == baselines.mine_negatives(**arguments)


@pytest.mark.parametrize("over", [None, "dev.run"])
def test_a_finished_run_has_the_report_of_the_first_call(over: str | None, world: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"device": "cpu", "out": tmp_path / "out", "over": over and world / over}
    first_run = baselines.run_model(world / "dual", world / "release", **arguments)
    with only_if_finished():
        second_run = baselines.run_model(world / "dual", world / "release", **arguments)
    assert str(second_run.report) == str(first_run.report)
    assert second_run.report.value == first_run.report.value


@pytest.mark.parametrize("name", ["release", "official"])
def test_a_finished_release_has_the_report_of_the_first_call(name: str, world: Path, tmp_path: Path) -> None:
    first_release = CASES[name].call(world, tmp_path / "out")
    second_release = CASES[name].call(world, tmp_path / "out")
    assert str(second_release.report) == str(first_release.report)
    assert json.dumps(second_release.report.value) == json.dumps(first_release.report.value)


def test_tried_values_belong_to_a_tuned_run(world: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"release": world / "release", "out": tmp_path / "out", "tune": "train"}
    baselines.search_bm25(**arguments)
    (tmp_path / "out.tuned.json").unlink()
    with only_if_finished(), pytest.raises(NotFinished, match=r"out.tuned.json is missing"):
        baselines.search_bm25(**arguments)


def test_the_family_of_a_model_counts_and_so_does_its_name(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    baselines.run_model(world / "dual", world / "release", out=out, device="cpu")
    (world / "dual").rename(world / "bge-small-zh-v1.5")
    with only_if_finished(), pytest.raises(NotFinished, match=r"family.name: default -> bge-zh.*; name: dual -> bge-"):
        baselines.run_model(world / "bge-small-zh-v1.5", world / "release", out=out, device="cpu")


def test_devices_of_one_kind_are_equal(world: Path, tmp_path: Path) -> None:
    case = CASES["encode"]
    case.call(world, tmp_path / "out")
    with only_if_finished():
        case.call(world, tmp_path / "out", device="cpu,cpu")
        with pytest.raises(NotFinished, match="device: cpu -> cuda"):
            case.call(world, tmp_path / "out", device="cuda:1,cuda:0")


def test_a_model_is_all_files_that_libraries_read(made_input: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(made_input / "dual", tmp_path / "model"))
    hashes = model_hashes(model)
    model_files = {"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json"}
    assert model_files <= set(hashes)
    # Files that no library reads do not count.
    (model / "checkpoint-5").mkdir()
    for name in ("README.md", "training.json", "loss.png", "training_args.bin", "checkpoint-5/config.json", ".x.json"):
        (model / name).write_text("{}")
    assert model_hashes(model) == hashes


def test_a_changed_model_is_not_the_model_of_its_embeddings(world: Path, tmp_path: Path) -> None:
    change_activation("dual")(world)
    with pytest.raises(InputError, match="is not the model that encoded"):
        CASES["search"].call(world, tmp_path / "out")


UPPER_CASE = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": False,
}
# A file of the model, and its other values.
CONFIGS = {
    "hidden_act": ("config.json", {"hidden_act": "relu"}),
    "layer_norm_eps": ("config.json", {"layer_norm_eps": 0.1}),
    "num_attention_heads": ("config.json", {"num_attention_heads": 4}),
    "truncation_side": ("tokenizer_config.json", {"truncation_side": "left"}),
    "normalizer": ("tokenizer.json", {"normalizer": UPPER_CASE}),
    "pre_tokenizer": ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}),
}


def fingerprint_of(model: Path) -> str:
    """Return the fingerprint of a model in a folder."""
    from baselines.core.settings import ModelSettings
    from baselines.retrieve.models import model_fingerprint, open_encoder

    return model_fingerprint(open_encoder(ModelSettings(str(model))))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_fingerprint_of_an_open_model_covers_its_settings(name: str, made_input: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(made_input / "dual", tmp_path / "model"))
    # BertTokenizer ignores these parts of tokenizer.json. The tokenizers of most models read them.
    edit_json(model / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    fingerprint_before = fingerprint_of(model)
    file_name, values = CONFIGS[name]
    edit_json(model / file_name, **values)
    assert fingerprint_of(model) != fingerprint_before


def test_the_fingerprint_of_an_open_model_covers_the_case_of_texts(made_input: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(made_input / "dual", tmp_path / "model"))
    fingerprint_before = fingerprint_of(model)
    edit_json(model / "tokenizer_config.json", do_lower_case=False)
    assert fingerprint_of(model) != fingerprint_before


def test_the_fingerprint_depends_on_no_path_and_on_no_text(made_input: Path, tmp_path: Path) -> None:
    from baselines.core.settings import ModelSettings
    from baselines.retrieve.models import model_fingerprint, open_encoder

    model = open_encoder(ModelSettings(str(made_input / "dual")))
    fingerprint_before = model_fingerprint(model)
    model.encode(["饺子怎么煮", "北京的冬天"])
    model.save_pretrained(str(tmp_path / "copy"))
    assert model_fingerprint(model) == fingerprint_of(tmp_path / "copy") == fingerprint_before


def test_states_of_another_start_are_not_resumed(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES["train"]
    out = tmp_path / "out"

    def stop(*_: object) -> None:
        raise InterruptedError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("baselines.train.training.write_checkpoint", stop)
        with pytest.raises(InterruptedError):
            case.call(world, out)
    edit_json(world / "bert" / "config.json", hidden_act="relu")
    case.call(world, out)
    assert "training anew, because start_files.config.json changed since these states were saved" in caplog.text
    assert "resumed" not in caplog.text
    assert content(out) == fresh_content(case, world, monkeypatch)


# Killed calls.


@pytest.fixture(scope="module")
def process() -> Iterator[Loaded]:
    with Loaded(HF_ENDPOINT="http://127.0.0.1:9") as loaded_process:
        yield loaded_process


def words_of(case: Case, world: Path, out: Path) -> list[str]:
    """Return the command line of a verb."""
    arguments = put_paths(case.arguments, world) | {"out": str(out)}
    return case.verb.split() + verb_spec(case.load_function()).words(arguments)


def last_point(log: str) -> int:
    """Return the number of points of a command from its stderr."""
    # A library may report leaks at the exit, so the number need not be the last line.
    return int(re.findall(r"^(\d+)(?:nanobind.*)?$", log, re.MULTILINE)[-1])


@pytest.mark.slow
# The number of points differs a little between equal calls, so the second point is not the last one.
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_killed_call_ends_in_the_same_bytes_when_it_is_called_again(
    case: Case, share: float, world: Path, tmp_path: Path, process: Loaded
) -> None:
    cache = str(tmp_path / "cache")
    # Count the points of the second call, because the first call may compile, so that it has more points.
    for name in ("first", "whole"):
        (tmp_path / name).mkdir()
        # --quiet, because the number of log lines depends on the machine's load, and a written line is a point.
        words = [*words_of(case, world, tmp_path / name / case.name), "--quiet"]
        log = process.run(*words, at=0, XDG_CACHE_HOME=str(tmp_path / name / "cache")).stderr
    words = words_of(case, world, tmp_path / case.name)
    # The last points are those of the record and of the exit of the process.
    kill_point = max(1, int(share * last_point(log)) - 12)
    killed = process.run(*words, "--quiet", code=None, at=kill_point, XDG_CACHE_HOME=cache)
    assert killed.code == -9
    process.run(*words, XDG_CACHE_HOME=cache)
    assert content(tmp_path / case.name) == content(tmp_path / "whole" / case.name)
    assert "already done" in process.run(*words, XDG_CACHE_HOME=cache).stderr
