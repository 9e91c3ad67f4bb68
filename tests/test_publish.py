"""``publish`` to a loopback hub: readers without this project's code, errors, cards, the benchmark's registration."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Done, error_of, run, run_python
from hub_client import run_at
from hub_server import READ, WRITE, Blob, Hub
from huggingface_hub import DatasetCard, HfApi
from releases import rows_by_split
from whole_release import make_whole, whole_tables
from yaml import safe_load

from builders.core.errors import InputError
from builders.publish.pages import scores_table
from builders.store.draft import draft_release
from builders.store.manifest import Build
from builders.store.reader import open_release

REPO = "org/name"
Publish = Callable[..., Done]
pytestmark = pytest.mark.usefixtures("equal_figures_are_drawn_once")


@pytest.fixture
def publish(hub: Hub, whole_copy: Path, tmp_path: Path) -> Publish:
    """Return a function that publishes a release to the hub."""

    def publish_release(*options: str, token: str | None = WRITE, path: Path = whole_copy, code: int = 0) -> Done:
        words = ["publish", "--release", path, "--repo", REPO, *options]
        return run_at(hub, tmp_path / "home", "builders", *words, token=token, code=code)

    return publish_release


def published_files(hub: Hub) -> dict[str, bytes]:
    return hub.repos["dataset", REPO].files


def write_copy(files: dict[str, bytes], copy: Path) -> None:
    """Write the published files, except the one that the hub adds."""
    for name, content in files.items():
        if name != ".gitattributes":
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)


def load(hub: Hub, home: Path, options: str, interpreter: Path | str = sys.executable) -> Any:
    """Load the rows of every published config in another process that has only ``datasets``."""
    code = f"""
import datasets
rows = {{}}
for config in datasets.get_dataset_config_names({REPO!r}):
    splits = datasets.load_dataset({REPO!r}, config, {options})
    rows[config] = {{split: list(split_rows) for split, split_rows in splits.items()}}
print(json.dumps(rows))
"""
    environment = hub.environment(home, None) | {"PYTHONPATH": ""}
    return rows_by_split(run_python(code, home, environment, interpreter))


def test_a_release_is_one_commit_and_loads_everywhere(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    result = publish("--create")
    repo = hub.repos["dataset", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "Release"]
    assert result.stdout.strip().endswith(f"/datasets/{REPO}/commit/{repo.commits[-1].oid}")
    assert load(hub, tmp_path / "plain", "") == whole_tables()
    assert load(hub, tmp_path / "streaming", "streaming=True") == whole_tables()


@pytest.mark.parametrize("options", ["streaming=True", ""], ids=["streaming", "plain"])
def test_it_loads_on_datasets_36(hub: Hub, publish: Publish, tmp_path: Path, datasets36: Path, options: str) -> None:
    publish("--create")
    assert load(hub, tmp_path / "36", options, datasets36) == whole_tables()


def test_a_dry_run_lists_the_files_and_sends_nothing(hub: Hub, publish: Publish) -> None:
    lines = publish("--dry-run").stdout.splitlines()[:-1]
    assert ("dataset", REPO) not in hub.repos
    publish("--create")
    assert {line.split()[1] for line in lines} == set(published_files(hub)) - {".gitattributes"}


def test_what_is_published_is_a_release_that_passes_check(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    publish("--create")
    copy = tmp_path / "copy"
    write_copy(published_files(hub), copy)
    done = run("builders", "check", "--release", copy, "--format", "json")
    counts = {test["test"]: test["count"] for test in json.loads(done.stdout)["tests"]}
    assert counts.pop("split-sizes")  # the release is smaller than the published one
    assert not any(counts.values())
    publish(path=copy)
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_refused_commit_leaves_nothing_and_a_lost_answer_makes_no_second_commit(hub: Hub, publish: Publish) -> None:
    repo = hub.create(REPO)  # with the hub's first commit
    # The hub answers 412 if another commit was made since the files were listed.
    hub.fail("POST", "/commit/", 412, times=1)
    error_line = error_of(publish(code=1))
    assert f"{hub.url} (HF_ENDPOINT) received another commit" in error_line
    assert "set HF_ENDPOINT" not in error_line
    assert len(repo.commits) == 1
    # The commit is made, but its answer is lost.
    hub.fail("POST", "/commit/", "lose", times=1)
    assert "cannot be reached, or broke the connection" in error_of(publish(code=1))
    # The release is already there, so nothing is committed again.
    publish()
    assert len(repo.commits) == 2


def test_refusals_of_the_hub_are_clear(hub: Hub, publish: Publish) -> None:
    error_line = error_of(publish(code=1))
    assert (
        f"{hub.url} has no dataset {REPO}, or the token may not read it; --create creates it; set HF_END" in error_line
    )
    hub.create(REPO)
    assert f"{hub.url} refuses the token" in error_of(publish(token="hf_wrong", code=1))
    assert "HF_TOKEN; set HF_ENDPOINT" in error_of(publish(token=None, code=1))
    error_line = error_of(publish(token=READ, code=1))
    assert f"no permission to write to {REPO} on {hub.url} (HF_ENDPOINT)" in error_line
    assert "set HF_ENDPOINT" not in error_line
    assert f"{REPO} on {hub.url} (HF_ENDPOINT) is public" in error_of(publish("--private", code=1))
    hub.repos["dataset", REPO].commits[-1].files["name.py"] = Blob(b"", False)
    assert f"{REPO} on {hub.url} (HF_ENDPOINT) has the script name.py" in error_of(publish(code=1))
    assert not hub.uploads


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_shard_that_changes_while_it_is_uploaded_is_noticed(
    hub: Hub, publish: Publish, whole_copy: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    repo = hub.create(REPO)
    shard = whole_copy / "corpus" / "corpus-00000-of-00001.parquet"
    original_upload = HfApi.preupload_lfs_files

    def upload_and_change(*args: Any, **options: Any) -> None:
        original_upload(*args, **options)
        if is_removed:
            shard.unlink()
        else:
            shard.write_bytes(shard.read_bytes()[::-1])

    monkeypatch.setattr(HfApi, "preupload_lfs_files", upload_and_change)
    assert f"{shard}: changed during the upload" in error_of(publish(code=1))
    assert len(repo.commits) == 1


@pytest.mark.parametrize("name", ["dureader_retrieval.py", "corpus/corpus.lock", ".hidden"])
def test_a_release_with_another_file_is_refused(hub: Hub, publish: Publish, whole_copy: Path, name: str) -> None:
    (whole_copy / name).write_text("x")
    assert name in error_of(publish("--create", code=1))
    assert not hub.requests


def test_a_release_that_fails_check_is_refused(hub: Hub, publish: Publish, whole_copy: Path) -> None:
    make_whole(whole_copy, lambda rows: rows["qrels", "dev"].pop())
    error_line = error_of(publish("--create", code=1))
    assert "fails `check`" in error_line
    assert "joined-rows" in error_line  # a warning says that a query has lost its only positive
    assert not hub.requests
    publish("--create", "--accept", "joined-rows", "dangling-ids")


HUB = "http://the-hub"
SCORED = [{"run": "runs/de.dev.run.gz", "queries": 2, "official": {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0}}]


@pytest.fixture(scope="module")
def files(whole_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Publish a release with scores. Return the published files."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "dev.json").write_text(json.dumps(SCORED))
    words = ["publish", "--release", whole_release, "--repo", REPO, "--create"]
    with Hub() as hub:
        run_at(hub, folder / "home", "builders", *words, "--scores", f"dev={folder / 'dev.json'}")
        # The hub's address differs in each test run.
        return {name: text.replace(hub.url.encode(), HUB.encode()) for name, text in published_files(hub).items()}


def test_the_registration_has_a_task_for_each_measure_of_a_judged_split(files: dict[str, bytes]) -> None:
    registration = safe_load(files["eval.yaml"])
    assert registration["name"] == "DuReader-retrieval"
    assert "evaluation_framework" not in registration
    expected_tasks = []
    # main's test split has no judgments.
    for part, config, split in (
        ("dev", "queries", "dev"),
        ("cmedqa_test", "cmedqa-queries", "test"),
        ("ccovid_test", "ccovid-queries", "test"),
        ("crosslingual_dev", "crosslingual-queries", "dev"),
        ("stress-swap_dev", "stress-swap-queries", "dev"),
    ):
        for measure in ("mrr_at_10", "recall_at_1", "recall_at_50"):
            expected_tasks.append({"id": f"{part}_{measure}", "config": config, "split": split})
    assert registration["tasks"] == expected_tasks


def test_the_head_names_tags_and_one_default_config(files: dict[str, bytes]) -> None:
    metadata = DatasetCard(files["README.md"].decode()).data.to_dict()
    assert "passage-retrieval" in metadata["tags"]
    assert metadata["task_ids"] == ["document-retrieval"]
    assert [config["config_name"] for config in metadata["configs"] if config.get("default")] == ["qrels"]
    # BEIR's HFDataLoader asks for the judgments without a name, and takes the first split of the queries for all.
    (queries,) = [config for config in metadata["configs"] if config["config_name"] == "queries"]
    assert re.fullmatch("Every query of the collection; content [0-9a-f]{64}", queries["description"])
    assert queries["data_files"][0] == {"split": "queries", "path": "queries/*-*.parquet"}


@pytest.mark.parametrize(("name", "heading"), [("README.md", "Limitations"), ("README.zh.md", "局限")])
def test_both_cards_show_a_row_columns_scores_limits_and_how_to_evaluate(
    files: dict[str, bytes], name: str, heading: str
) -> None:
    card = files[name].decode()
    assert f"\n## {heading}\n" in card
    for text in (
        "https://arxiv.org/abs/2203.10232",
        "| de.dev.run.gz | `dev` | 75.00 | 50.00 | 100.00 |",
        f'load_dataset("{REPO}", "dev")',
        "| `dev` | dev | 2 | 1 |",
        "| 4 | 2 | - | 2 | 1 |",
        f"hf download {REPO} --repo-type dataset",
        "python -m baselines evaluate",
        "`query-id`",
        "14.8",
    ):
        assert text in card
    (row,) = re.findall(r"```json\n(.*?)\n```", card, re.DOTALL)
    first_row = whole_tables()["dev", "dev"][0]
    assert json.loads(row) == first_row | {"negative_passages": first_row["negative_passages"][:1]}


@pytest.mark.parametrize(
    ("part", "message"),
    [("dev", "was measured on 3 queries; dev has 2"), ("test", "expected a judged split")],
)
def test_scores_of_other_queries_or_of_no_split_are_refused(
    whole_release: Path, tmp_path: Path, part: str, message: str
) -> None:
    scores_path = tmp_path / "scores.json"
    scores_path.write_text(json.dumps([SCORED[0] | {"queries": 3}]))
    with pytest.raises(InputError, match=message):
        scores_table(open_release(whole_release), [], {part: scores_path})


def test_the_papers_figures_stand_on_the_card_of_the_official_data_alone(whole_release: Path) -> None:
    release = open_release(whole_release)
    assert scores_table(release, [Build("release")], {}) == ""
    table = scores_table(release, [Build("official")], {})
    assert "| BM25 | `test` | 21.03 | 12.08 | 70.00 | paper, Table 4 |" in table


def test_what_publish_made_stays_out_of_releases_made_of_a_copy(files: dict[str, bytes], tmp_path: Path) -> None:
    write_copy(files, tmp_path / "copy")
    copy = open_release(tmp_path / "copy")
    assert "eval.yaml" in {entry.path for entry in copy.manifest.files}
    with draft_release(tmp_path / "made", {"verb": "test"}, copy):
        pass
    paths = {entry.path for entry in open_release(tmp_path / "made").manifest.files}
    assert "corpus/corpus-00000-of-00001.parquet" in paths
    assert not paths & {"eval.yaml", "README.zh.md", "assets/passage-length.png"}
