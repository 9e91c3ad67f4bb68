"""README and docs/: commands run, outputs are as shown, and links work."""

import json
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import ROOT, parse
from official_archives import ORIGINAL, PREPROCESSED, original_files, preprocessed_files, write_tar
from pages import NOT_RUN, PAGES, README, TOOLS, VERBS, blocks, is_ours, lines, python, shell, shows

from builders.store.reader import open_release

GENERATOR = runpy.run_path(str(ROOT / "docs" / "verbs.py"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def write_sources(folder: Path, sample: Path) -> None:
    release = open_release(sample)
    questions = {split: release.table("queries", split).to_pylist() for split in ("train", "dev", "test")}
    asked = "".join(f"{number}\td{number % 10}\t问题{number}？\t略\n" for number in range(960))
    english = "".join(f"{row['_id']}\tquestion {n}\n" for n, row in enumerate(questions["dev"]))
    paragraphs = {"train": "北京的冬天很冷。", "dev": "高铁票可以提前买。"}
    squad = {name: {"context": context, "qas": [{"question": f"{context}？"}]} for name, context in paragraphs.items()}
    for name, text in {
        "cMedQA2/question.csv": "question_id,content\n1,头疼怎么办\n2,失眠\n",
        "cMedQA2/answer.csv": "ans_id,question_id,content\n11,1,多休息\n",
        "cMedQA2/dev_candidates.txt": "question_id,ans_id,cnt,label\n1,11,0,1\n",
        "NCPPolicies/NCPPolicies_context_1.csv": "docid\ttext\n" + "".join(f"d{n}\t第{n}项措施。\n" for n in range(10)),
        "NCPPolicies/NCPPolicies_train_1.csv": f"id\tdocid\tquestion\tanswer\n{asked}",
        "translations.tsv": f"id\tenglish\n{english}",
        **{f"cmrc/{name}.json": json.dumps({"data": [{"paragraphs": [each]}]}) for name, each in squad.items()},
        "news.txt": "".join(f"第{n}条新闻，今天天气很好。\n" for n in range(5)),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_tar(folder / f"{ORIGINAL}.v0.tar.gz", original_files(), folder / "scratch")
    write_tar(folder / f"{PREPROCESSED}.tar.gz", preprocessed_files(), folder / "scratch")
    rows = [row["_id"] for split in questions.values() for row in split]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 8)).tolist()
    pq.write_table(pa.table({"_id": rows, "embedding": vectors}), folder / "build/queries.parquet")


@pytest.fixture
def place(
    tmp_path: Path, sample_release: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    shutil.copytree(sample_release, tmp_path / "build/sample")
    for name in ("builders", "baselines"):  # the sample, the settings
        (tmp_path / name).symlink_to(ROOT / name)
    write_sources(tmp_path, sample_release)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "docs-cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize("page", [each for each in PAGES if any(b.is_run for b in blocks(each))], ids=name_of)
def test_the_blocks_of_a_page_run_and_print_what_is_shown(page: Path, place: Path) -> None:
    names: dict[str, object] = {}
    printed = None
    for block in blocks(page):
        if block.is_run:
            printed = shell(block.text) if block.language == "bash" else python(block.text, names)
            continue
        assert block.language != "text" or printed is None or shows(block.text, printed), printed
        printed = None


def test_the_notebook_runs_and_prints_what_it_shows(place: Path) -> None:
    names: dict[str, object] = {}
    for cell in json.loads((ROOT / "docs/own_model.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = python("".join(cell["source"]), names)
            assert printed == "".join(line for each in cell["outputs"] for line in each.get("text", ()))


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("bash", "python") and not block.is_run:
                assert NOT_RUN.fullmatch(block.note), f"{page.name}: ```{block.language} {block.note}"


@pytest.mark.parametrize("page", [*PAGES, *TOOLS, *VERBS], ids=name_of)
def test_every_command_that_is_shown_has_options_that_exist(page: Path) -> None:
    shown = [block.text for block in blocks(page) if not block.is_run]
    # Of a help text, the example's commands and the lines that go on behind a backslash.
    shown = ["".join(re.findall(r"^ *python -m (?:.*\\\n)*.*\n", text, re.MULTILINE)) for text in shown]
    for words in (words for text in shown for words in lines(text)):
        if is_ours(words) and words[3:] and words[3][0] not in "-V":
            parse(*words[2:])


@pytest.mark.parametrize("page", [*PAGES, *TOOLS], ids=name_of)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_page_of_a_verb_is_what_its_help_says() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in VERBS} == GENERATOR["pages"]()


def test_the_readmes_name_every_page_and_have_at_most_180_lines() -> None:
    readme, chinese = (path.read_text(encoding="utf-8") for path in README)
    assert GENERATOR["index"]() in readme
    assert all(f"](docs/tools/{path.name})" in readme for path in TOOLS)
    assert all(f"docs/verbs/{path.name}" in chinese for path in VERBS)
    assert max(len(text.splitlines()) for text in (readme, chinese)) <= 180
