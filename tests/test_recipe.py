"""Recipes have the values of the paper; trainings that are refused, finished, or resumed from their states."""

import json
import operator
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Done, error_of, run
from releases import QUESTIONS, TEXTS, make_release, md5
from tiny_models import write_bert

from baselines.retrieve.hub_models import model_commit
from baselines.train import resume
from baselines.train.recipe import read_recipe
from baselines.train.recipe_files import recipe_names
from baselines.train.train import train_model
from builders.core.errors import InputError
from builders.core.finished_outputs import record_path
from builders.store.runs import write_run

PAPER = {  # Appendix A.2, and the starting checkpoint of each model (Figure 1; Sections 3.6 and 3.7)
    "de-bm25-neg": ("dual", 256, 10, 3e-5, 0.1, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-bm25-neg": ("cross", 64, 3, 1e-5, 0.0, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-de-neg": ("cross", 64, 3, 1e-5, 0.0, "recipe:ce-bm25-neg", "main"),
    "mbert-supervised": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "crosslingual"),
    "mbert-zero-shot": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "main"),
    "mbert-transferred": ("dual", 256, 10, 3e-5, 0.1, "recipe:mbert-zero-shot", "crosslingual"),
    "de-cmedqa": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "cmedqa"),
    "de-ccovid": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "ccovid"),
    # The pool's models (Section 2.3, A.1) start from the checkpoints that the paper cites.
    "de-bert": ("dual", 256, 10, 3e-5, 0.1, "hfl/chinese-bert-wwm-ext", "main"),
    "de-roberta": ("dual", 256, 10, 3e-5, 0.1, "hfl/chinese-roberta-wwm-ext", "main"),
    "de-macbert": ("dual", 256, 10, 3e-5, 0.1, "hfl/chinese-macbert-base", "main"),
    "ce-pool-ernie": ("cross", 64, 3, 1e-5, 0.0, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-pool-bert": ("cross", 64, 3, 1e-5, 0.0, "hfl/chinese-bert-wwm-ext", "main"),
    "ce-pool-roberta": ("cross", 64, 3, 1e-5, 0.0, "hfl/chinese-roberta-wwm-ext", "main"),
    "ce-pool-macbert": ("cross", 64, 3, 1e-5, 0.0, "hfl/chinese-macbert-base", "main"),
}
# Values of the official code, by their keys in the recipe. Batches count the rows of all GPUs.
OFFICIAL: dict[str, dict[str, Any]] = {
    "official-de": {
        "model.kind": "dual",
        "model.towers": 2,
        "model.outputs": 1,
        "train.batch": 512,
        "train.epochs": 10,
        "train.learning_rate": 3e-5,
        "train.warmup": 0.1,
        "train.schedule": "linear",
        "train.weight_decay": 0.0,
        "train.adversarial": 0.0,
    },
    "official-ce": {
        "model.kind": "cross",
        "model.towers": 1,
        "model.outputs": 2,
        "train.batch": 256,
        "train.epochs": 3,
        "train.learning_rate": 1e-5,
        "train.warmup": 0.0,
        "train.schedule": "constant",
        "train.weight_decay": 0.01,
        "train.adversarial": 0.01,
    },
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_recipes_hold_the_values_of_the_official_code(name: str) -> None:
    recipe = read_recipe(name)
    model, data, train = recipe.model, recipe.data, recipe.train
    for key, expected_value in OFFICIAL[name].items():
        assert operator.attrgetter(key)(recipe) == expected_value, key
    assert (model.start, model.inputs, data.negatives) == ("nghuyong/ernie-1.0-base-zh", "official", "release")
    assert (data.negatives_per_positive, data.rows, train.clip, train.seed) == (4, "one-negative", 1.0, 1)
    assert (data.query_length, data.passage_length) == (32, 384)


@pytest.mark.parametrize("name", PAPER)
def test_recipes_hold_the_values_of_the_paper(name: str) -> None:
    recipe = read_recipe(name)
    train = recipe.train
    training_values = (recipe.model.kind, train.batch, train.epochs, train.learning_rate, train.warmup)
    start_and_set = (recipe.model.start, recipe.data.set)
    assert training_values + start_and_set == PAPER[name]
    assert recipe.data.negatives_per_positive == 4
    assert (recipe.data.query_length, recipe.data.passage_length) == (32, 384)
    assert (recipe.data.split, recipe.data.rows) == ("train", "one-negative")


def test_the_distillation_continues_from_the_trained_retriever() -> None:
    recipe = read_recipe("de-distil")
    assert (recipe.model.start, recipe.data.rows) == ("recipe:de-bm25-neg", "all-negatives")
    assert recipe.distil is not None and recipe.distil.loss == "kl"
    assert read_recipe("de-distil-scratch").model.start == "recipe:de-bm25-neg-scratch"
    # Recipes without the new keys are recorded as before, so their finished trainings stay finished.
    old_values = read_recipe("de-bm25-neg").resolved()
    assert "distil" not in old_values and not {"query_prompt", "passage_prompt"} & set(old_values["model"])


@pytest.mark.parametrize(
    ("name", "setting", "problem"),
    [
        ("de-distil", "distil.loss=mse", "--set distil.loss=mse"),
        ("de-distil", "distil.lose=kl", "unknown key 'lose'; expected loss, teacher_scale, top_k"),
        ("de-distil", "distil.teacher_scale=0", "--set distil.teacher_scale=0"),
        ("de-distil", "distil.top_k=0", "--set distil.top_k=0"),
        ("de-distil", "data.negatives_per_positive=0", "needs data.negatives_per_positive above 0"),
        ("de-distil", "data.negatives=release", "data.negatives: with distil"),
        ("de-distil", "train.shortest=64", "train.shortest: needs a recipe without distil"),
        ("de-bm25-neg", "distil.top_k=9", "distil"),
        ("ce-bm25-neg", "distil.loss=kl", "distil: needs model.kind = dual, found cross"),
        ("ce-bm25-neg", "model.query_prompt=q: ", "model.query_prompt: needs model.kind = dual, found cross"),
    ],
)
def test_wrong_values_of_a_distillation_are_one_line(name: str, setting: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_recipe(name, [setting])
    assert problem in str(error.value) and "\n" not in str(error.value)


RETRIEVERS = ("de-bm25-neg", "de-bert", "de-roberta", "de-macbert")


def values_but_seed_and_name(name: str) -> dict[str, Any]:
    """Return the values of a recipe's scratch variant, with one seed and no name."""
    values = read_recipe(f"{name}-scratch", ["train.seed=0"]).resolved()
    return values | {"name": ""}


def test_every_recipe_has_one_for_machines_without_pretrained_weights() -> None:
    small_recipes = {"mlm-scratch", "static", "question-matching", "question-matching-cpu", "question-matching-scratch"}
    scratch_recipes = {f"{name}-scratch" for name in PAPER}
    distilled_recipes = {"de-distil", "de-distil-scratch"}
    assert set(recipe_names()) == set(PAPER) | set(OFFICIAL) | scratch_recipes | small_recipes | distilled_recipes
    assert read_recipe("mlm-scratch").model.start == "scratch"
    for name in PAPER:
        paper = read_recipe(name)
        scratch = read_recipe(f"{name}-scratch")
        assert (scratch.model.kind, scratch.data.set) == (paper.model.kind, paper.data.set)
        # A start that is a recipe stays one. A pretrained start becomes the model that is trained from scratch.
        if paper.model.start.startswith("recipe:"):
            assert scratch.model.start == f"{paper.model.start}-scratch"
        else:
            assert scratch.model.start == "recipe:mlm-scratch"
    # The recipes of a pool differ only by their seeds.
    for pool in (RETRIEVERS, [name for name in PAPER if name.startswith("ce-pool-")]):
        seeds = {read_recipe(f"{name}-scratch").train.seed for name in pool}
        assert len(seeds) == 4
        first_values = values_but_seed_and_name(pool[0])
        assert all(values_but_seed_and_name(name) == first_values for name in pool)


def test_a_recipe_takes_over_the_values_of_the_one_that_it_is_like(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('like = "ce-pool-bert-scratch"\n[train]\nepochs = 9\n[model]\nstart = "./x"\n')
    expected = read_recipe("ce-bm25-neg-scratch", ["train.seed=1", "train.epochs=9", "model.start=./x"])
    assert read_recipe(str(path)).resolved() | {"name": ""} == expected.resolved() | {"name": ""}
    for wrong_value in ('"ce-bm26"', '"../x"', "3", "[[1]]"):
        path.write_text(f"like = {wrong_value}\n")
        with pytest.raises(InputError, match=re.escape(f"{path}: like: expected one of ce-bm25-neg, ")):
            read_recipe(str(path))


def test_an_override_is_read_as_the_value_that_its_key_takes() -> None:
    recipe = read_recipe("de-bm25-neg", ["train.batch=64", "train.learning_rate=1", "model.start=/x", "train.seed=7"])
    assert (recipe.train.batch, recipe.train.learning_rate, recipe.model.start, recipe.train.seed) == (64, 1.0, "/x", 7)
    assert recipe.train.epochs == 10
    assert recipe.resolved()["train"]["batch"] == 64
    assert read_recipe("mlm-scratch", ["scratch.layers=2"]).resolved()["scratch"]["layers"] == 2


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("de-bm25-neg", "train.batsch=3", "unknown key 'batsch'; expected batch, epochs"),
        ("de-bm25-neg", "train.batch=0", "expected `int` >= 1"),
        ("de-bm25-neg", "model.kind=triple", "expected one of cross, dual, mlm, found 'triple'"),
        ("de-bm25-neg", "data.split=test", "final evaluation"),
        ("de-bm25-neg", "train.report_to=mlflow", "train: report_to: expected auto, none, or some of tensorboard, "),
        ("de-bm25-neg", "batch", "expected SECTION.KEY=VALUE"),
        ("ce-bm25-neg", "model.towers=2", "model.towers: needs model.kind = dual, found cross"),
        ("ce-bm25-neg", "train.embeddings_gradient=2", "train.embeddings_gradient: needs train.adversarial"),
        ("de-bm25-neg", "model.inputs=official", "model: inputs: official inputs differ for queries and passages"),
        ("ce-de-neg", "model.revision=main", "model: revision: needs a start on the hub, found recipe:ce-bm25-neg"),
        ("de-ccovid", "data.negatives=release", "data.negatives: official negatives exist only for the set main, not"),
    ],
)
def test_an_override_that_does_not_fit_is_one_error(name: str, override: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_recipe(name, [override])


def test_a_training_reports_to_installed_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.train.recipe.find_spec", {"tensorboardX", "wandb"}.__contains__)
    auto = read_recipe("static")
    assert auto.train.loggers() == ["tensorboard"]
    loggers_by_value = {"none": [], "wandb": ["wandb"], "tensorboard,wandb": ["tensorboard", "wandb"]}
    for value, loggers in loggers_by_value.items():
        recipe = read_recipe("static", [f"train.report_to={value}"])
        assert recipe.train.loggers() == loggers
        assert recipe.resolved() == auto.resolved()  # resumes the same training
    with pytest.raises(InputError, match=r"report_to: trackio is not installed; run `pip install trackio`"):
        read_recipe("static", ["train.report_to=wandb,trackio"]).train.loggers()


NEGATIVE_LINES = [
    json.dumps({"query-id": md5(question), "negative-ids": [md5(TEXTS[4])]}) + "\n" for question in QUESTIONS["train"]
]
SMALL = ["train.batch=4", "train.max_steps=2", "train.evaluations=1", "train.saves=0"]
SMALL += ["data.passage_length=24", "data.query_length=12", "data.negatives_per_positive=1"]


class World:
    """A release, a starting checkpoint, negatives and a run. ``train`` runs the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "models" / "out"
        self.release = make_release(folder / "release")
        self.start = write_bert(folder / "bert")
        self.negatives = folder / "negatives.jsonl"
        self.negatives.write_text("".join(NEGATIVE_LINES), encoding="utf-8")
        self.run = folder / "dev.run"
        write_run(self.run, [(md5(question), [(md5(TEXTS[4]), 1.0)]) for question in QUESTIONS["dev"]])

    def train(self, *words: object, recipe: str = "ce-bm25-neg-scratch", code: int | None = 0, **set: object) -> Done:
        """Run `train` with ``words`` after the usual options. The word ``-NAME`` removes the option ``--NAME``."""
        usual_options: dict[str, object] = {
            "release": self.release,
            "out": self.out,
            "start": self.start,
            "negatives": self.negatives,
            "device": "cpu",
            "cache": self.folder / "cache",
        }
        later_words = []
        for word in words:
            name = str(word)[1:]
            if str(word)[0] == "-" and name in usual_options:
                del usual_options[name]
            else:
                later_words.append(word)
        options: list[object] = []
        for name, value in usual_options.items():
            options += [f"--{name}", value]
        for setting in SMALL + [f"train.{key}={value}" for key, value in set.items()]:
            options += ["--set", setting]
        return run("baselines", "train", recipe, options, later_words, code=code)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


DE, CE, PAIRS = "de-bm25-neg-scratch", "ce-bm25-neg-scratch", "question-matching-cpu"


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (CE, ["--out", "{full}"], "exists and is not a checkpoint; expected"),
        (CE, ["--set", "data.passage_length=600"], "data.passage_length = 600: expected at most 512 tokens"),
        (CE, ["-release"], "the recipe ce-bm25-neg-scratch learns from a release; give --release DIR"),
        (DE, ["-negatives"], "needs 1 hard negatives per positive; give --negatives F"),
        (DE, ["--negatives", "{folder}/lost.jsonl"], "lost.jsonl: no such file"),
        (CE, ["--dev-run", "{folder}/lost.run", "--set", "train.evaluations=0"], "lost.run: no such file"),
        (DE, ["-start"], "no checkpoint of mlm-scratch, which de-bm25-neg-scratch starts from"),
        (DE, ["--dev-run", "{folder}/dev.run"], "--dev-run needs a cross-encoder;"),
        ("de-bm26", [], "no recipe 'de-bm26'"),
        ("de-cmedqa-scratch", [], "cmedqa-corpus"),
        (PAIRS, ["--pairs", "{pairs}", "-negatives"], "labelled pairs of questions; give --pairs FILE..., and no "),
        (PAIRS, ["--pairs", "{pairs}", "-release", "-negatives"], "expected pairs with label 0 and pairs with label 1"),
    ],
)
def test_bad_input_is_one_error(world: World, recipe: str, words: list[str], message: str) -> None:
    full_folder = world.folder / "full"
    full_folder.mkdir()
    (full_folder / "thesis.txt").write_text("mine", encoding="utf-8")
    pairs_path = world.folder / "pairs.tsv"
    pair_lines = [f"甲{number}\t乙\t1\n" for number in range(40)]
    pairs_path.write_text("text1\ttext2\tlabel\n" + "".join(pair_lines), encoding="utf-8")
    options = [word.format(folder=world.folder, full=full_folder, pairs=pairs_path) for word in words]
    done = world.train(*options, recipe=recipe, code=1)
    assert message in error_of(done)
    assert [path.name for path in full_folder.iterdir()] == ["thesis.txt"]
    assert not world.out.parent.exists() or not list(world.out.parent.iterdir())


@pytest.mark.slow
def test_states_of_another_training_are_left_out_and_damaged_ones_are_an_error(world: World) -> None:
    states = world.out.with_name("out.training")
    states.mkdir(parents=True)
    (states / "about.json").write_text('{"recipe": "another"}')  # killed before its first state
    world.train()
    (states / "checkpoint-2").mkdir()
    changed = "training anew, because recipe.train.seed changed since these states were saved"
    assert changed in world.train(seed=3).stderr
    (states / "about.json").write_text("{")
    assert error_of(world.train(code=1, seed=4)).endswith("; --again starts anew")
    world.train("--again", seed=4)


def test_from_python_the_result_is_the_checkpoint(world: World) -> None:
    for _ in range(2):  # the second call finds the finished training
        checkpoint = train_model(
            "ce-bm25-neg-scratch",
            release=world.release,
            start=str(world.start),
            negatives=[world.negatives],
            out=world.out,
            set=SMALL,
            device="cpu",
        )
        assert Path(checkpoint) == world.out
        assert checkpoint.open().training["steps"] == 2
        assert checkpoint.report is not None
        assert checkpoint.report.value["steps"] == 2


def test_the_recipes_are_listed_with_a_sentence_each() -> None:
    lines = run("baselines", "train", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert lines[0].split(maxsplit=1)[1].startswith("CE w/ BM25 Neg: the paper's first re-ranker (")
    assert "error: python -m baselines train: RECIPE and --list exclude each other" in (
        run("baselines", "train", "de-bm25-neg", "--list", code=2).stderr
    )


@pytest.fixture
def done_from_the_hub(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    simulate_hub(monkeypatch, "a1" * 20)
    world.train()
    record = json.loads(record_path(world.out).read_text(encoding="utf-8"))
    record["options"]["start"] = "org/name"
    record["inputs"]["start"] = {"commit": "a1" * 20}
    record_path(world.out).write_text(json.dumps(record), encoding="utf-8")
    return world


def simulate_hub(monkeypatch: pytest.MonkeyPatch, commit: str | None) -> None:
    """Simulate a hub with this commit of every model. None: the hub is unreachable, and the cache is empty."""

    def return_commit(model: str, *_: Any) -> str | None:
        if Path(model).is_dir():
            return None
        if commit is None:
            raise InputError("there is no hub")
        return commit

    monkeypatch.setattr("baselines.train.training_job.model_commit", return_commit)


def test_a_finished_training_depends_on_the_commit(done_from_the_hub: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: list[Any] = []
    monkeypatch.setattr("baselines.train.training.train_checkpoint", trainings.append)
    monkeypatch.setattr("baselines.train.training.record_finished", lambda *_, **__: None)
    for commit, training_count in ((None, 0), ("a1" * 20, 0), ("b2" * 20, 1)):
        simulate_hub(monkeypatch, commit)
        log = done_from_the_hub.train("--start", "org/name").stderr
        assert len(trainings) == training_count
        assert ("already done" in log) == (not trainings)
        has_warning = "there is no hub; " in log and f"was made with the commit {'a1' * 20}" in log
        assert has_warning == (commit is None)


STEPS = {"max_steps": 4, "saves": 4, "evaluations": 0}  # saves a state at every step, retains two


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A finished training, and ``stopped.training``: states of a training killed during the write of its checkpoint."""
    world = World(tmp_path_factory.mktemp("world"))
    world.train(**STEPS)

    def stop(*_: object) -> None:
        raise InterruptedError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("baselines.train.training.write_checkpoint", stop)
        world.train("--out", world.folder / "stopped", code=1, **STEPS)
    return world


def _flip_bit(path: Path) -> None:
    """Change the lowest bit of the byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _flip_bits_of_both(optimizer: Path) -> None:
    """Damage this file of both saved states."""
    for step in (3, 4):
        _flip_bit(optimizer.parents[1] / f"checkpoint-{step}" / optimizer.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spoil", "step", "message"),
    [
        ("model.safetensors", _flip_bit, 3, "checkpoint-4 cannot be used (model.safetensors has the SHA-256"),
        ("sealed.json", Path.unlink, 3, "checkpoint-4 cannot be used (the training was killed during the save)"),
        ("optimizer.pt", _flip_bits_of_both, None, "checkpoint-3 cannot be used (optimizer.pt has the SHA-256"),
        ("config.json", lambda path: None, 4, ""),
    ],
)
def test_a_training_resumes_from_the_last_whole_state(
    stopped: World, tmp_path: Path, name: str, spoil: Callable[[Path], object], step: int | None, message: str
) -> None:
    out = tmp_path / "out"
    states = Path(shutil.copytree(stopped.folder / "stopped.training", resume.states_of(out)))
    spoil(states / "checkpoint-4" / name)
    log = stopped.train("--out", out, **STEPS).stderr
    assert message in log
    assert ("cannot be used" in log) == bool(message)
    is_resumed = step is not None
    assert ("resumed" in log) == is_resumed
    assert (f"resumed after step {step} of 4" in log) == is_resumed
    assert (out / "model.safetensors").read_bytes() == (stopped.out / "model.safetensors").read_bytes()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("there is no hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    snapshot = tmp_path / "cache" / "models--org--cached" / "snapshots" / ("a1" * 20)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    model_commit.cache_clear()
    return snapshot.name


def test_without_a_hub_the_start_is_the_commit_in_the_cache(cached: str, caplog: pytest.LogCaptureFixture) -> None:
    assert model_commit("org/cached", "", "do without") == cached
    assert f"there is no hub; do without; the cache has the commit {cached}" in caplog.text
    with pytest.raises(InputError, match=r"org/name would come from the hub: there is no hub; do without"):
        model_commit("org/name", "", "do without")
