"""Files that ``publish`` puts beside a release: two cards, the benchmark's registration."""

import json
import re
from pathlib import Path

import pytest
from hub_client import run_at
from hub_server import Hub
from huggingface_hub import DatasetCard
from publishing import REPO, listed
from whole_release import whole_tables
from yaml import safe_load

from builders.core.errors import InputError
from builders.publish.pages import scores_table
from builders.store.draft import draft_release
from builders.store.manifest import Build
from builders.store.reader import open_release

HUB = "http://the-hub"
SCORED = [{"run": "runs/de.dev.run.gz", "queries": 2, "official": {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0}}]


@pytest.fixture(scope="module")
def files(whole_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("published")
    (folder / "dev.json").write_text(json.dumps(SCORED))
    words = ["publish", "--release", whole_release, "--repo", REPO, "--create"]
    with Hub() as hub:
        run_at(hub, folder / "home", "builders", *words, "--scores", f"dev={folder / 'dev.json'}")
        return {name: content.replace(hub.url.encode(), HUB.encode()) for name, content in listed(hub).items()}


def test_the_registration_has_a_task_for_each_measure_of_a_judged_split(files: dict[str, bytes]) -> None:
    found = safe_load(files["eval.yaml"])
    assert found["name"] == "DuReader-retrieval" and "evaluation_framework" not in found
    parts = [("dev", "queries", "dev"), ("cmedqa_test", "cmedqa-queries", "test")]
    parts += [("ccovid_test", "ccovid-queries", "test"), ("crosslingual_dev", "crosslingual-queries", "dev")]
    assert found["tasks"] == [
        {"id": f"{part}_{measure}", "config": config, "split": split}
        for part, config, split in parts
        for measure in ("mrr_at_10", "recall_at_1", "recall_at_50")
    ]  # main's test split has no judgments


def test_the_head_names_tags_and_one_default_config(files: dict[str, bytes]) -> None:
    data = DatasetCard(files["README.md"].decode()).data.to_dict()
    assert "passage-retrieval" in data["tags"] and data["task_ids"] == ["document-retrieval"]
    assert [each["config_name"] for each in data["configs"] if each.get("default")] == ["qrels"]
    # BEIR's HFDataLoader asks for the judgments without a name, and takes the first split of the queries for all.
    (queries,) = (each for each in data["configs"] if each["config_name"] == "queries")
    assert re.fullmatch("Every query of the collection; content [0-9a-f]{64}", queries["description"])
    assert queries["data_files"][0] == {"split": "queries", "path": "queries/*-*.parquet"}


def test_both_cards_show_a_row_columns_scores_limits_and_how_to_evaluate(files: dict[str, bytes]) -> None:
    english, chinese = files["README.md"].decode(), files["README.zh.md"].decode()
    shared = ["https://arxiv.org/abs/2203.10232", "| de.dev.run.gz | `dev` | 75.00 | 50.00 | 100.00 |"]
    shared += [f'load_dataset("{REPO}", "dev")', "| `dev` | dev | 2 | 1 |", "| 4 | 2 | - | 2 | 1 |"]
    shared += [f"hf download {REPO} --repo-type dataset", "python -m baselines evaluate", "`query-id`", "14.8"]
    for text in (english, chinese):
        for needed in shared:
            assert needed in text
        (row,) = re.findall(r"```json\n(.*?)\n```", text, re.DOTALL)
        first = whole_tables()["dev", "dev"][0]
        assert json.loads(row) == first | {"negative_passages": first["negative_passages"][:1]}
    assert "\n## Limitations\n" in english and "\n## 局限\n" in chinese


def test_scores_of_other_queries_or_of_no_split_are_refused(whole_release: Path, tmp_path: Path) -> None:
    release, file = open_release(whole_release), tmp_path / "scores.json"
    file.write_text(json.dumps([SCORED[0] | {"queries": 3}]))
    for part, said in (("dev", "was measured on 3 queries; dev has 2"), ("test", "expected a judged split")):
        with pytest.raises(InputError, match=said):
            scores_table(release, [], {part: file})


def test_the_papers_figures_stand_on_the_card_of_the_official_data_alone(whole_release: Path) -> None:
    release = open_release(whole_release)
    assert scores_table(release, [Build("release")], {}) == ""
    shown = scores_table(release, [Build("official")], {})
    assert "| BM25 | `test` | 21.03 | 12.08 | 70.00 | paper, Table 4 |" in shown


def test_what_publish_made_stays_out_of_releases_made_of_a_copy(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in files.items():
        if name != ".gitattributes":
            (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "copy" / name).write_bytes(content)
    copy = open_release(tmp_path / "copy")
    assert "eval.yaml" in {entry.path for entry in copy.manifest.files}
    with draft_release(tmp_path / "made", {"verb": "test"}, copy):
        pass
    paths = {entry.path for entry in open_release(tmp_path / "made").manifest.files}
    assert "corpus/corpus-00000-of-00001.parquet" in paths
    assert not paths & {"eval.yaml", "croissant.json", "README.zh.md", "assets/passage-length.png"}
