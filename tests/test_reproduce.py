"""``reproduce``: tables, plan, settings, finished steps, and rows that a release cannot provide."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotating import annotate, read_table
from commands import ROOT, Done, run
from releases import make_release, md5, tables
from reproduce_world import planned, reported, reproduce

from baselines.reproduce.paper_tables import select_pool
from baselines.reproduce.select_rows import rows_of
from baselines.reproduce.step_settings import read_settings
from baselines.reproduce.steps import Step, Steps
from baselines.train.recipe_files import recipe_names
from builders.annotate.pool import read_pool
from builders.core.options import check_value
from builders.core.parser import parse_words
from builders.core.verbs import verb_spec
from builders.store.runs import read_run

RETRIEVERS = ("de-bm25-neg", "de-bert", "de-roberta", "de-macbert")
RERANKERS = tuple(f"ce-pool-{name}" for name in ("ernie", "bert", "roberta", "macbert"))
POOL = RETRIEVERS + RERANKERS  # recipes of the pool's models, besides BM25
POOL_RETRIEVERS = ("bm25", *RETRIEVERS)


def reproduce_bm25(folder: Path, *words: object, code: int = 0) -> Done:
    """Reproduce the row of BM25 in Table 4."""
    return reproduce(folder, "--table", 4, "--row", "bm25", *words, code=code)


@pytest.fixture
def here(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    make_release(tmp_path / "release")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("scratch", [False, True])
def test_every_step_is_one_that_its_verb_takes(scratch: bool) -> None:
    steps = Steps(Path("R"), Path("O"), scratch=scratch)
    for row in rows_of(steps) + rows_of(steps, of_pool=True):
        row.run()
    select_pool(steps)
    for step in steps.recorded.values():
        assert step.arguments["release"] == "R"
        assert Path(step.arguments["out"]) == step.output
        spec = verb_spec(step.function)
        verb_words = 1 + len(step.verb.split())
        parsed_arguments = parse_words(spec, step.words()[verb_words:])
        options = {option.name: option for option in spec.options}
        for name, value in step.arguments.items():
            assert parsed_arguments[name] == check_value(options[name], value, name)
        assert parsed_arguments.keys() == step.arguments.keys()


def test_steps_with_the_same_output_are_the_same() -> None:
    class CheckedSteps(Steps):
        def __call__(self, verb: str, *, out: str, **arguments: Any) -> Step:
            earlier = self.recorded.pop(out, None)
            step = super().__call__(verb, out=out, **arguments)
            assert earlier in (None, step)
            return step

    steps = CheckedSteps(Path("R"), Path("O"))
    for row in rows_of(steps) + rows_of(steps, of_pool=True):
        row.run()


def steps_of(folder: Path, *words: object) -> list[list[str]]:
    """Return the planned commands that write a model, a run or a file of theirs."""
    commands = planned(folder, "--release", "nowhere", *words)
    return [command for command in commands if command[1] not in ("release", "evaluate")]


@pytest.mark.parametrize("scratch_words", [[], ["--scratch"]])
@pytest.mark.parametrize("pool_words", [[], ["--pool"]])
def test_shared_steps_come_once_and_before_what_needs_them(
    tmp_path: Path, scratch_words: list[str], pool_words: list[str]
) -> None:
    commands = steps_of(tmp_path, *scratch_words, *pool_words)
    outputs = [command[command.index("--out") + 1] for command in commands]
    assert len(set(outputs)) == len(outputs)
    for number, command in enumerate(commands):
        # A step's inputs from other steps are written before the step.
        later_outputs = set(outputs[number + 1 :])
        assert not later_outputs & set(command)


@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_a_plan_trains_every_recipe_of_its_rows(tmp_path: Path, scratch: bool, pool: bool) -> None:
    words = ["--scratch"] * scratch + ["--pool"] * pool
    commands = steps_of(tmp_path, *words)
    trained = {command[2].removesuffix("-scratch") for command in commands if command[1] == "train"}
    assert ("mlm" in trained) == scratch
    recipes = {name.removesuffix("-scratch") for name in recipe_names() if name.endswith("-scratch") == scratch}
    # Recipes of other tasks, and those of the pool except the first, which is a row of the tables, too.
    not_in_tables = {name for name in recipes if name.startswith(("question-matching", "static", "de-distil"))} | set(
        POOL[1:]
    )
    expected = set(POOL) if pool else recipes - not_in_tables
    assert trained - {"mlm"} == expected - {"mlm"}


def test_a_single_row_trains_only_what_it_needs(tmp_path: Path) -> None:
    commands = steps_of(tmp_path, "--row", "ce-bm25-neg-on-bm25", "--scratch")
    assert [command[1] for command in commands] == ["bm25", "bm25", "mine", "train", "train", "rerank"]
    for command in commands:
        assert not [word for word in command if "de-" in word]


def test_dry_run_prints_the_commands_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("baselines", "reproduce", "--table", 4, "--row", "bm25", "--dry-run")
    build, bm25, evaluate = done.stdout.splitlines()
    assert build == f"python -m builders release --raw {ROOT / 'builders' / 'sample'} --out build/sample"
    assert bm25 == (
        "python -m baselines bm25 --release build/sample --split dev --out build/runs/sample/bm25.dev.run.gz --top-k 50"
        " --k1 1.2 --b 0.75 --analyzer words --stop-words keep"
    )
    assert (
        evaluate == "python -m baselines evaluate build/runs/sample/bm25.dev.run.gz --release build/sample --split dev"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_sample_is_run_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def plan_trainings(*words: object) -> list[list[str]]:
        done = run("baselines", "reproduce", "--dry-run", "--format", "json", "--row", "de-bm25-neg", words)
        return [command for command in json.loads(done.stdout) if command[1] == "train"]

    (training,) = plan_trainings()  # only one training, because the static model starts from words
    assert training[2] == "de-bm25-neg-scratch"
    assert "train.evaluations=2" in training[3:]
    assert [command[2] for command in plan_trainings("--small", "--release", "x")] == ["de-bm25-neg-scratch"]
    assert [command[2] for command in plan_trainings("--release", "build/sample")] == ["de-bm25-neg"]


def command_of(words: list[str]) -> str:
    """Return a command without folders."""
    return " ".join(Path(word).name for word in words[1:])


def test_the_pool_has_nine_models_and_the_rerankers_score_what_five_retrieve(tmp_path: Path) -> None:
    commands = planned(tmp_path, "--release", "nowhere", "--pool")
    lines = [command_of(command) for command in commands]
    dev_runs = [f"{name}.dev.run.gz" for name in POOL_RETRIEVERS]
    train_runs = [f"{name}.train.run.gz" for name in POOL_RETRIEVERS]
    score_runs = [f"{name}.dev.run.gz" for name in RERANKERS]
    dev = "--release nowhere --split dev"
    train = "--release nowhere --split train"
    select = f"annotate pool select {dev} --runs {' '.join(dev_runs)} --out pool.dev.jsonl.gz"
    assert lines[-10] == f"{select} --scores {' '.join(score_runs)}"
    assert lines[-9:] == [f"evaluate {run} {dev}" for run in dev_runs + score_runs]
    mined = "--out pool.negatives.jsonl.gz --split train --top-k 250 --negatives 4"
    expected = {
        f"annotate pool candidates {train} --runs {' '.join(train_runs)} --out pool.train.run.gz",
        f"mine --release nowhere --run pool.train.run.gz {mined}",
        f"annotate pool candidates {dev} --runs {' '.join(dev_runs)} --out pool.dev.run.gz",
    }
    for name in RERANKERS:
        data = "--negatives pool.negatives.jsonl.gz --dev-run bm25.dev.run.gz"
        expected.add(f"train {name} --release nowhere --out {name} {data}")
        run_words = f"--split dev --out {name}.dev.run.gz --top-k 250"
        expected.add(f"rerank --release nowhere --run pool.dev.run.gz --model {name} {run_words}")
    assert expected <= set(lines)


def test_an_unknown_table_is_one_line_with_the_known_rows(tmp_path: Path) -> None:
    stderr = reproduce(tmp_path, "--table", 99, "--dry-run", code=2).stderr
    assert "no row matches --table 99; known rows: --table 4 --row bm25" in stderr


def test_a_table_is_no_part_of_the_pool(tmp_path: Path) -> None:
    stderr = reproduce(tmp_path, "--pool", "--table", 4, "--dry-run", code=2).stderr
    assert "no row matches --table 4; known rows: --pool --row pool-bm25; " in stderr


TINY = """
["*"]
train = { max_steps = 1, evaluations = 0, saves = 0, batch = 4 }
data.passage_length = 24
[mlm-scratch]
scratch = { vocabulary = 500, layers = 1, hidden = 32, heads = 2, feed_forward = 32 }
[de-bm25-neg-scratch]
model = { start = "words", pooling = "" }
words.dimensions = 32
data.negatives_per_positive = 1
[options.rerank]
max-length = 32
"""


@pytest.mark.usefixtures("own_cache")
def test_the_pool_is_trained_and_its_best_passages_go_to_people(sample_release: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(TINY)
    words = ["--release", sample_release, "--pool", "--small", "--settings", tmp_path / "settings.toml"]
    rows = reported(tmp_path, *words)["rows"]
    assert len({row["row"] for row in rows}) == 9
    assert all(0 <= row["ours"] <= 100 for row in rows)
    out = tmp_path / "out"
    # BM25 has no recipe, and so no variant from scratch.
    retrieval_runs = [read_run(out / "bm25.dev.run.gz").rankings]
    for name in RETRIEVERS:
        retrieval_runs.append(read_run(out / f"{name}-scratch.dev.run.gz").rankings)
    score_runs = [read_run(out / f"{name}-scratch.dev.run.gz").rankings for name in RERANKERS]
    pairs = read_pool(out / "pool-scratch.dev.jsonl.gz")
    for query_id in retrieval_runs[0]:
        candidates: set[str] = set()
        for rankings in retrieval_runs:
            candidates |= set(rankings[query_id])
        assert all(set(rankings[query_id]) == candidates for rankings in score_runs)
        best_passages = [pair.corpus_id for pair in pairs if pair.query_id == query_id]
        assert len(best_passages) == 5
        assert set(best_passages) <= candidates
    annotate("export", tmp_path / "round", "--pool", out / "pool-scratch.dev.jsonl.gz", "--release", sample_release)
    sheet_rows = read_table(tmp_path / "round" / "packages" / "dev-001.csv")
    sheet_pairs = [(row["query-id"], row["corpus-id"]) for row in sheet_rows]
    assert sorted(sheet_pairs) == sorted(pair.pair for pair in pairs)
    assert len(sheet_pairs) == 5 * 16
    log_lines = reproduce(tmp_path, *words).stderr.splitlines()
    assert not [line for line in log_lines if "running: " in line]


def remove_negatives(here: Path) -> Path:
    """Write the release again, without negative passages."""
    rows = tables()
    for row in rows["train", "train"]:
        row["negative_passages"] = []
    make_release(here / "release", rows)
    return here


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--table", 7), "RELEASE: bm25, de-zero-shot, de-fine-tuned: has no cmedqa-queries/test to measure on; `pyth"),
        (("--row", "official-de"), "RELEASE: official-de: has no official hard negatives, which `python -m builders"),
        (("--row", "official-ce", "--scratch"), "RELEASE: official-ce: has no recipe without pretrained weights"),
        (("--table", 6), "RELEASE: with-similar-duplicated, without-similar-duplicated: has no duplicated/dev, train-"),
        (("--figure", 2, "--split", "test"), "RELEASE: bm25-before, de-bm25-neg-before, ce-bm25-neg-before: has no qr"),
    ],
)
def test_what_a_release_lacks_is_one_line(here: Path, words: tuple[object, ...], message: str) -> None:
    done = reproduce(remove_negatives(here), *words, code=1)
    assert done.error.startswith(message.replace("RELEASE", str(here / "release"))) and done.stdout == ""


def test_rows_that_were_not_asked_for_are_left_out_and_logged(here: Path) -> None:
    done = reproduce(remove_negatives(here), "--dry-run")
    assert "--queries" not in done.stdout and "qrels-before" not in done.stdout and "train ce-de-neg" in done.stdout
    assert "has no qrels-before; `python -m builders similar` and `annotate merge` make them; skipped" in done.stderr
    assert "official-de" not in done.stdout and "official-de, official-ce: has no official hard" in done.stderr


def test_a_step_is_run_again_only_where_it_must_be(here: Path) -> None:
    output = here / "out" / "bm25.dev.run.gz"

    def is_run() -> bool:
        """Run the row, and return True if its step was run and not skipped."""
        log = reproduce_bm25(here).stderr
        assert ("running: " in log) != (f"already done: {output}" in log)
        return "running: " in log

    shard = next((here / "release" / "corpus").iterdir())
    moved_shard = here / "shard"
    shard.rename(moved_shard)
    log = reproduce_bm25(here, code=1).stderr
    assert "error: this step failed with exit code 1: python -m baselines bm25" in log
    moved_shard.rename(shard)
    assert is_run()
    content = output.read_bytes()
    assert not is_run()
    output.write_bytes(content[:-1])  # not the step's output
    assert is_run()
    assert output.read_bytes() == content
    output.unlink()
    assert is_run()
    rows = tables()
    rows["queries", "train"] = rows["queries", "train"][:-1]
    make_release(here / "release", rows)  # data that the step does not read
    assert not is_run()
    rows["corpus", "corpus"].append({"_id": md5("另一段"), "title": "", "text": "另一段"})
    make_release(here / "release", rows)
    assert is_run()
    assert not is_run()


def test_the_test_split_ends_in_predictions_and_says_so_first(here: Path) -> None:
    done = reproduce_bm25(here, "--split", "test")
    assert done.stderr.index("has no labels of the test split") < done.stderr.index("running: ")
    path = here / "out" / "predictions" / "table4.bm25.test" / "predictions" / "bm25.test.json"
    assert done.stdout == f"predictions of the test split, Table 4, bm25: {path}\n"
    predictions = json.loads(path.read_text(encoding="utf-8"))
    assert set(predictions) <= {row["_id"] for row in tables()["queries", "test"]}


def plan_with_settings(folder: Path, settings: str, *words: object) -> list[list[str]]:
    """Return the planned commands with a file of these settings."""
    (folder / "settings.toml").write_text(settings)
    return steps_of(folder, "--settings", folder / "settings.toml", *words)


def overrides_of_trainings(commands: list[list[str]]) -> dict[str, list[str]]:
    """Return the overridden values of section train, by recipe."""
    overrides = {}
    for command in commands:
        if command[1] == "train":
            overrides[command[2]] = [word for word in command if word.startswith("train.")]
    return overrides


def value_of(command: list[str], option: str) -> str:
    """Return the value of an option that the command has once."""
    assert command.count(option) == 1
    return command[command.index(option) + 1]


def test_settings_are_given_to_the_recipes_and_to_every_step_of_a_verb(tmp_path: Path) -> None:
    settings = '["*"]\ntrain.seed = 3\n[ce-bm25-neg]\ntrain.seed = 4\n[ce-de-neg]\nmodel.start = "./somewhere"\n'
    overrides = overrides_of_trainings(plan_with_settings(tmp_path, settings, "--table", 5))
    assert overrides["de-bm25-neg"] == ["train.seed=3"]
    assert overrides["ce-bm25-neg"] == ["train.seed=3", "train.seed=4"]


def test_options_are_given_to_every_step_of_a_verb(tmp_path: Path) -> None:
    options = "rerank = { top-k = 20, max-length = 96 }\nmine = { negatives = 1 }\ntrain = { again = true }\n"
    for command in plan_with_settings(tmp_path, f"[options]\n{options}", "--table", 5):
        verb = command[1]
        if verb == "rerank":
            assert value_of(command, "--top-k") == "20"
            assert value_of(command, "--max-length") == "96"
        if verb == "mine":
            assert value_of(command, "--negatives") == "1"
        if verb == "bm25":
            assert value_of(command, "--top-k") == "50"
        assert ("--again" in command) == (verb == "train")


@pytest.mark.parametrize(("settings_of_all", "seeds"), [("", []), ('["*"]\ntrain.seed = 5\n', ["train.seed=5"])])
def test_settings_of_a_recipe_reach_the_recipes_that_are_like_it(
    tmp_path: Path, settings_of_all: str, seeds: list[str]
) -> None:
    """The file of de-bert-scratch sets the seed, so only the values of * and its own values change it."""
    settings = "[de-bm25-neg-scratch]\ntrain.seed = 7\ntrain.batch = 8\n[de-bert-scratch]\ntrain.epochs = 2\n"
    commands = plan_with_settings(tmp_path, settings_of_all + settings, "--pool", "--scratch")
    overrides = overrides_of_trainings(commands)
    batch = ["train.batch=8"]
    seed_and_batch = ["train.seed=7", "train.batch=8"]
    batch_and_epochs = ["train.batch=8", "train.epochs=2"]
    assert overrides.pop("de-bm25-neg-scratch") == seeds + seed_and_batch
    assert overrides.pop("de-bert-scratch") == seeds + batch_and_epochs
    assert overrides.pop("de-roberta-scratch") == seeds + batch
    assert overrides.pop("de-macbert-scratch") == seeds + batch
    assert overrides
    assert all(words == seeds for words in overrides.values())


def test_a_setting_replaces_an_option_of_a_step(tmp_path: Path) -> None:
    (command,) = plan_with_settings(tmp_path, "[options.bm25]\ntop-k = 5\n", "--row", "bm25", "--table", 4)
    assert value_of(command, "--top-k") == "5"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("topk = 5", "no option --topk; did you mean top-k?"),
        ("top-k = 0", "--top-k: expected a whole number of at least 1, found 0"),
        ("analyzer = 'foo'", "--analyzer: expected one of words, characters, bigrams, both, found 'foo'"),
        ("split = 'test'", "--split defines the step and cannot be set; remove it"),
        ("out = 'elsewhere'", "--out defines the step and cannot be set; remove it"),
    ],
)
def test_a_wrong_setting_of_a_step_is_named(tmp_path: Path, setting: str, message: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"[options.bm25]\n{setting}\n")
    done = reproduce_bm25(tmp_path, "--dry-run", "--settings", path, code=1)
    assert done.error == f"{path}: options.bm25: {message}"


def test_the_settings_that_come_with_the_project_are_good() -> None:
    paths = list((ROOT / "baselines" / "settings").glob("*.toml"))
    for path in paths:
        read_settings(path)
    assert {"sample", "cmrc-cpu", "crosslingual-cpu"} <= {path.stem for path in paths}
