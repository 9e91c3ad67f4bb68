"""``reproduce``: tables, plan, settings, finished steps, and rows that a release cannot provide."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from annotating import annotate, read_table
from commands import ROOT, run
from releases import make_release, md5, tables
from reproduce_world import planned, reported, reproduce

from baselines.reproduce.paper_tables import select_pool
from baselines.reproduce.select_rows import rows_of
from baselines.reproduce.step_settings import read_settings
from baselines.reproduce.steps import Step, Steps
from baselines.train.recipe import names
from builders.annotate.pool import read_pool
from builders.core.options import check_value
from builders.core.parser import parse_words
from builders.core.verbs import verb_spec
from builders.store.runs import read_run

BM25 = ("--table", 4, "--row", "bm25")
RETRIEVERS = ("de-bm25-neg", "de-bert", "de-roberta", "de-macbert")
RERANKERS = tuple(f"ce-pool-{name}" for name in ("ernie", "bert", "roberta", "macbert"))
POOL = RETRIEVERS + RERANKERS  # recipes of the pool's models, besides BM25


@pytest.fixture
def here(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    make_release(tmp_path / "release")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("scratch", [False, True])
def test_every_step_is_one_that_its_verb_takes(scratch: bool) -> None:
    do = Steps(Path("R"), Path("O"), scratch=scratch)
    for row in rows_of(do) + rows_of(do, of_pool=True):
        row.run()
    select_pool(do)
    for step in do.recorded.values():
        assert step.arguments["release"] == "R" and Path(step.arguments["out"]) == step.output
        spec = verb_spec(step.function)
        arguments = parse_words(spec, step.words()[1 + len(step.verb.split()) :])
        options = {option.name: option for option in spec.options}
        assert arguments == {name: check_value(options[name], v, name) for name, v in step.arguments.items()}


def test_steps_with_the_same_output_are_the_same() -> None:
    class CheckedSteps(Steps):
        def __call__(self, verb: str, *, out: str, **arguments: Any) -> Step:
            earlier = self.recorded.pop(out, None)
            step = super().__call__(verb, out=out, **arguments)
            assert earlier in (None, step)
            return step

    do = CheckedSteps(Path("R"), Path("O"))
    for row in rows_of(do) + rows_of(do, of_pool=True):
        row.run()


def steps_of(folder: Path, *words: object) -> list[list[str]]:
    commands = planned(folder, "--release", "nowhere", *words)
    return [command for command in commands if command[1] not in ("release", "evaluate")]


def test_shared_steps_come_once_and_before_what_needs_them(tmp_path: Path) -> None:
    for variant, pool in itertools.product(([], ["--scratch"]), ([], ["--pool"])):
        commands = steps_of(tmp_path, *variant, *pool)
        written = [command[command.index("--out") + 1] for command in commands]
        assert len(set(written)) == len(written)
        for place, command in enumerate(commands):
            # A step's inputs from other steps are written before the step.
            assert not {*command} & {*written[place + 1 :]}
        trained = [command[2].removesuffix("-scratch") for command in commands if command[1] == "train"]
        assert ("mlm" in trained) == bool(variant)
        every = {name.removesuffix("-scratch") for name in names() if name.endswith("-scratch") == bool(variant)}
        others = {name for name in every if name.startswith(("question-matching", "static")) or name in POOL[1:]}
        assert {*trained} - {"mlm"} == ({*POOL} if pool else every - others - {"mlm"})
    commands = steps_of(tmp_path, "--row", "ce-bm25-neg-on-bm25", "--scratch")
    assert [command[1] for command in commands] == ["bm25", "bm25", "mine", "train", "train", "rerank"]
    assert not [word for command in commands for word in command if "de-" in word]


def test_dry_run_prints_the_commands_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build, bm25, evaluate = run("baselines", "reproduce", *BM25, "--dry-run").stdout.splitlines()
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

    def trained(*words: object) -> list[list[str]]:
        found = run("baselines", "reproduce", "--dry-run", "--format", "json", "--row", "de-bm25-neg", *words).stdout
        return [command for command in json.loads(found) if command[1] == "train"]

    ((_, _, recipe, *words),) = trained()  # only one training, because the static model starts from words
    assert recipe == "de-bm25-neg-scratch" and "train.evaluations=2" in words
    assert [command[2] for command in trained("--small", "--release", "x")] == ["de-bm25-neg-scratch"]
    assert [command[2] for command in trained("--release", "build/sample")] == ["de-bm25-neg"]


def command_of(words: list[str]) -> str:
    """Return a command without folders."""
    return " ".join(Path(word).name for word in words[1:])


def test_the_pool_has_nine_models_and_the_rerankers_score_what_five_retrieve(tmp_path: Path) -> None:
    commands = planned(tmp_path, "--release", "nowhere", "--pool")
    lines = [command_of(command) for command in commands]
    dev, train = ([f"{name}.{split}.run.gz" for name in ("bm25", *RETRIEVERS)] for split in ("dev", "train"))
    scores = [f"{name}.dev.run.gz" for name in RERANKERS]
    at = "--release nowhere --split"
    best = f"annotate pool select {at} dev --runs {' '.join(dev)} --out pool.dev.jsonl.gz --scores {' '.join(scores)}"
    assert lines[-10:] == [best, *(f"evaluate {run} {at} dev" for run in dev + scores)]
    mined = "--out pool.negatives.jsonl.gz --split train --top-k 250 --negatives 4"
    expected = {
        f"annotate pool candidates {at} train --runs {' '.join(train)} --out pool.train.run.gz",
        f"mine --release nowhere --run pool.train.run.gz {mined}",
        f"annotate pool candidates {at} dev --runs {' '.join(dev)} --out pool.dev.run.gz",
    }
    data = "--negatives pool.negatives.jsonl.gz --dev-run bm25.dev.run.gz"
    pooled = "--release nowhere --run pool.dev.run.gz"
    for name in RERANKERS:
        expected |= {f"train {name} --release nowhere --out {name} {data}"}
        expected |= {f"rerank {pooled} --model {name} --split dev --out {name}.dev.run.gz --top-k 250"}
    assert expected <= {*lines}
    error = reproduce(tmp_path, "--pool", "--table", 4, "--dry-run", code=1).error
    assert error.startswith("no row matches --table 4; known rows: --pool --row pool-bm25; ")


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
    given = ("--release", sample_release, "--pool", "--small", "--settings", tmp_path / "settings.toml")
    rows = reported(tmp_path, *given)["rows"]
    assert len({row["row"] for row in rows}) == 9 and all(0 <= row["ours"] <= 100 for row in rows)
    out = tmp_path / "out"
    runs = [read_run(out / f"{name}.dev.run.gz").rankings for name in ("bm25", *(f"{n}-scratch" for n in RETRIEVERS))]
    scored = [read_run(out / f"{name}-scratch.dev.run.gz").rankings for name in RERANKERS]
    pairs = read_pool(out / "pool-scratch.dev.jsonl.gz")
    for query in runs[0]:
        candidates = {passage for ranking in runs for passage in ranking[query]}
        assert all({*ranking[query]} == candidates for ranking in scored)
        best = [pair.corpus_id for pair in pairs if pair.query_id == query]
        assert len(best) == 5 and {*best} <= candidates
    annotate("export", tmp_path / "round", "--pool", out / "pool-scratch.dev.jsonl.gz", "--release", sample_release)
    sheet = [(row["query-id"], row["corpus-id"]) for row in read_table(tmp_path / "round" / "packages" / "dev-001.csv")]
    assert sorted(sheet) == sorted(pair.pair for pair in pairs) and len(sheet) == 5 * 16
    again = [line for line in reproduce(tmp_path, *given).stderr.splitlines() if "running: " in line]
    assert again == []


def bare(here: Path) -> Path:
    rows = tables()
    rows["train", "train"] = [{**row, "negative_passages": []} for row in rows["train", "train"]]
    make_release(here / "release", rows)
    return here


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--table", 99), "no row matches --table 99; known rows: --table 4 --row bm25"),
        (("--table", 7), "RELEASE: bm25, de-zero-shot, de-fine-tuned: has no cmedqa-queries/test to measure on; `pyth"),
        (("--row", "official-de"), "RELEASE: official-de: has no official hard negatives, which `python -m builders"),
        (("--row", "official-ce", "--scratch"), "RELEASE: official-ce: has no recipe without pretrained weights"),
        (("--table", 6), "RELEASE: with-similar-duplicated, without-similar-duplicated: has no duplicated/dev, train-"),
        (("--figure", 2, "--split", "test"), "RELEASE: bm25-before, de-bm25-neg-before, ce-bm25-neg-before: has no qr"),
    ],
)
def test_what_a_release_lacks_is_one_line(here: Path, words: tuple[object, ...], message: str) -> None:
    done = reproduce(bare(here), *words, code=1)
    assert done.error.startswith(message.replace("RELEASE", str(here / "release"))) and done.stdout == ""


def test_rows_that_were_not_asked_for_are_left_out_and_logged(here: Path) -> None:
    done = reproduce(bare(here), "--dry-run")
    assert "--queries" not in done.stdout and "qrels-before" not in done.stdout and "train ce-de-neg" in done.stdout
    assert "has no qrels-before; `python -m builders similar` and `annotate merge` make them; skipped" in done.stderr
    assert "official-de" not in done.stdout and "official-de, official-ce: has no official hard" in done.stderr


def test_a_step_is_run_again_only_where_it_must_be(here: Path) -> None:
    output = here / "out" / "bm25.dev.run.gz"

    def ran() -> bool:
        err = reproduce(here, *BM25).stderr
        assert ("running: " in err) != (f"already done: {output}" in err)
        return "running: " in err

    (shard, *_), broken = (here / "release" / "corpus").iterdir(), here / "shard"
    shard.rename(broken)
    assert "error: this step failed with exit code 1: python -m baselines bm25" in reproduce(here, *BM25, code=1).stderr
    broken.rename(shard)
    assert ran()
    whole = output.read_bytes()
    assert not ran()
    output.write_bytes(whole[:-1])  # not the step's output
    assert ran() and output.read_bytes() == whole
    output.unlink()
    assert ran()
    rows = tables()
    rows["queries", "train"] = rows["queries", "train"][:-1]
    make_release(here / "release", rows)  # data that the step does not read
    assert not ran()
    rows["corpus", "corpus"].append({"_id": md5("另一段"), "title": "", "text": "另一段"})
    make_release(here / "release", rows)
    assert ran() and not ran()


def test_the_test_split_ends_in_predictions_and_says_so_first(here: Path) -> None:
    done = reproduce(here, *BM25, "--split", "test")
    lines = done.stderr.splitlines()
    said = next(number for number, line in enumerate(lines) if "has no labels of the test split" in line)
    assert said < next(number for number, line in enumerate(lines) if "running: " in line)
    file = here / "out" / "predictions" / "table4.bm25.test" / "predictions" / "bm25.test.json"
    assert done.stdout == f"predictions of the test split, Table 4, bm25: {file}\n"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found) <= {row["_id"] for row in tables()["queries", "test"]}


def with_settings(folder: Path, text: str, *words: object) -> list[list[str]]:
    (folder / "settings.toml").write_text(text)
    return steps_of(folder, "--settings", folder / "settings.toml", *words)


def test_settings_are_given_to_the_recipes_and_to_every_step_of_a_verb(tmp_path: Path) -> None:
    recipes = '["*"]\ntrain.seed = 3\n[ce-bm25-neg]\ntrain.seed = 4\n[ce-de-neg]\nmodel.start = "./somewhere"\n'
    own = [command for command in with_settings(tmp_path, recipes, "--table", 5) if command[1] == "train"]
    given = {command[2]: [word for word in command if word.startswith("train.")] for command in own}
    assert given["de-bm25-neg"] == ["train.seed=3"] and given["ce-bm25-neg"] == ["train.seed=3", "train.seed=4"]
    text = "rerank = { top-k = 20, max-length = 96 }\nmine = { negatives = 1 }\ntrain = { again = true }\n"
    for command in with_settings(tmp_path, f"[options]\n{text}", "--table", 5):
        verb = command[1]
        if verb == "rerank":
            assert command[command.index("--top-k") + 1] == "20"
            assert command[command.index("--max-length") + 1] == "96"
        if verb == "mine":
            assert command.count("--negatives") == 1 and command[command.index("--negatives") + 1] == "1"
        if verb == "bm25":
            assert command[command.index("--top-k") + 1] == "50"
        assert ("--again" in command) == (verb == "train")


def test_settings_of_a_recipe_reach_the_recipes_that_are_like_it(tmp_path: Path) -> None:
    """The file of de-bert-scratch sets the seed, so only the values of * and its own values change it."""
    own = "[de-bm25-neg-scratch]\ntrain.seed = 7\ntrain.batch = 8\n[de-bert-scratch]\ntrain.epochs = 2\n"
    for every, seeds in (("", []), ('["*"]\ntrain.seed = 5\n', ["train.seed=5"])):
        commands = with_settings(tmp_path, every + own, "--pool", "--scratch")
        trained = {command[2].removesuffix("-scratch"): command for command in commands if command[1] == "train"}
        given = {name: [word for word in command if word.startswith("train.")] for name, command in trained.items()}
        assert given.pop("de-bm25-neg") == [*seeds, "train.seed=7", "train.batch=8"]
        assert given.pop("de-bert") == [*seeds, "train.batch=8", "train.epochs=2"]
        assert given.pop("de-roberta") == given.pop("de-macbert") == [*seeds, "train.batch=8"]
        assert {*map(tuple, given.values())} == {tuple(seeds)}


def test_a_setting_replaces_an_option_of_a_step(tmp_path: Path) -> None:
    (command,) = with_settings(tmp_path, "[options.bm25]\ntop-k = 5\n", "--row", "bm25", "--table", 4)
    assert command.count("--top-k") == 1 and command[command.index("--top-k") + 1] == "5"


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
    done = reproduce(tmp_path, *BM25, "--dry-run", "--settings", path, code=1)
    assert done.error == f"{path}: options.bm25: {message}"


def test_the_settings_that_come_with_the_project_are_good() -> None:
    found = {path.stem: read_settings(path) for path in (ROOT / "baselines" / "settings").glob("*.toml")}
    assert {"sample", "cmrc-cpu", "crosslingual-cpu"} <= set(found)
