"""README and docs/: commands run, outputs are as shown, and links work."""

import importlib
import json
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Return the name of a page in the test's id."""
    return str(page.relative_to(ROOT))


def squad_file(paragraph: str) -> str:
    """Return a file in the format of SQuAD with one paragraph and one question."""
    row = {"context": paragraph, "qas": [{"question": f"{paragraph}？"}]}
    return json.dumps({"data": [{"paragraphs": [row]}]})


def write_sources(folder: Path, sample: Path) -> None:
    """Write the downloaded files that the commands of the pages read."""
    release = open_release(sample)
    query_ids = {}
    for split in ("train", "dev", "test"):
        query_ids[split] = [row["_id"] for row in release.table("queries", split).to_pylist()]
    policies = [f"d{number}\t第{number}项措施。\n" for number in range(10)]
    policy_questions = [f"{number}\td{number % 10}\t问题{number}？\t略\n" for number in range(960)]
    translations = [f"{query_id}\tquestion {number}\n" for number, query_id in enumerate(query_ids["dev"])]
    files = {
        "cMedQA2/question.csv": "question_id,content\n1,头疼怎么办\n2,失眠\n",
        "cMedQA2/answer.csv": "ans_id,question_id,content\n11,1,多休息\n",
        "cMedQA2/dev_candidates.txt": "question_id,ans_id,cnt,label\n1,11,0,1\n",
        "NCPPolicies/NCPPolicies_context_1.csv": "docid\ttext\n" + "".join(policies),
        "NCPPolicies/NCPPolicies_train_1.csv": "id\tdocid\tquestion\tanswer\n" + "".join(policy_questions),
        "translations.tsv": "id\tenglish\n" + "".join(translations),
        "cmrc/train.json": squad_file("北京的冬天很冷。"),
        "cmrc/dev.json": squad_file("高铁票可以提前买。"),
        "news.txt": "".join(f"第{number}条新闻，今天天气很好。\n" for number in range(5)),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_tar(folder / f"{ORIGINAL}.v0.tar.gz", original_files(), folder / "scratch")
    write_tar(folder / f"{PREPROCESSED}.tar.gz", preprocessed_files(), folder / "scratch")
    all_ids = query_ids["train"] + query_ids["dev"] + query_ids["test"]
    vectors = np.random.default_rng(0).normal(size=(len(all_ids), 8)).tolist()
    pq.write_table(pa.table({"_id": all_ids, "embedding": vectors}), folder / "build/queries.parquet")


@pytest.fixture
def working_folder(
    tmp_path: Path, sample_release: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The working directory in which the commands of a page run, with the files that they read."""
    shutil.copytree(sample_release, tmp_path / "build/sample")
    for name in ("builders", "baselines"):  # the sample, the settings
        (tmp_path / name).symlink_to(ROOT / name)
    write_sources(tmp_path, sample_release)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "docs-cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def has_commands(page: Path) -> bool:
    """True if a block of a page is run."""
    return any(block.is_run for block in blocks(page))


# Pages that `make test` runs. `make test-slow` runs the others, because they repeat verbs that other tests call.
QUICK_PAGES = ("README.md", "README.zh.md", "evaluate.md", "load.md", "python.md")


def page_parameters() -> list[Any]:
    """Return the pages with commands."""
    parameters = []
    for page in PAGES:
        if has_commands(page):
            marks = [] if page.name in QUICK_PAGES else [pytest.mark.slow]
            parameters.append(pytest.param(page, marks=marks, id=name_of(page)))
    return parameters


@pytest.mark.parametrize("page", page_parameters())
@pytest.mark.usefixtures("working_folder")
def test_the_blocks_of_a_page_run_and_print_what_is_shown(page: Path) -> None:
    names: dict[str, object] = {}
    stdout = None
    for block in blocks(page):
        if block.is_run:
            stdout = shell(block.text) if block.language == "bash" else python(block.text, names)
            continue
        # A text block that follows a command shows its output.
        if block.language == "text" and stdout is not None:
            assert shows(block.text, stdout), stdout
        stdout = None


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("bash", "python") and not block.is_run:
                assert NOT_RUN.fullmatch(block.note), f"{page.name}: ```{block.language} {block.note}"


@pytest.mark.parametrize("page", [*PAGES, *TOOLS, *VERBS], ids=name_of)
def test_every_command_that_is_shown_has_options_that_exist(page: Path) -> None:
    for block in blocks(page):
        if block.is_run:
            continue
        # A help text has commands in its examples. A command may go on in the next line, after a backslash.
        commands = re.findall(r"^ *python -m (?:.*\\\n)*.*\n", block.text, re.MULTILINE)
        for words in lines("".join(commands)):
            # The usage line of a program has an option or VERB in place of a verb.
            if is_ours(words) and words[3:] and words[3][0] not in "-V":
                parse(*words[2:])


@pytest.mark.parametrize("page", [*PAGES, *TOOLS], ids=name_of)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_page_of_a_verb_is_what_its_help_says() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in VERBS} == GENERATOR["pages"]()
    assert (ROOT / "docs/verbs.md").read_text(encoding="utf-8") == GENERATOR["index_page"]()


def test_the_list_of_pages_names_every_page_and_notebook() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for pattern in ("*.md", "*/*.ipynb") for path in docs.glob(pattern)}
    page_list = (docs / "README.md").read_text(encoding="utf-8")
    assert pages - {"README.md"} <= set(re.findall(r"\]\(([^)#]+)\)", page_list))


@pytest.mark.parametrize(
    ("front_page", "readme"), [("docs/index.md", "README.md"), ("docs/zh/index.md", "README.zh.md")]
)
def test_the_front_page_of_the_site_says_what_the_readme_says(front_page: str, readme: str) -> None:
    """The description and the code blocks are in both, so that one change is made in both."""
    readme_text = (ROOT / readme).read_text(encoding="utf-8")
    description = (ROOT / front_page).read_text(encoding="utf-8").split("\n\n")[1]
    assert description in readme_text
    for block in blocks(ROOT / front_page):
        assert block.text in readme_text


@pytest.mark.parametrize("package", ["baselines", "builders"])
def test_the_page_of_a_package_has_every_public_name(package: str) -> None:
    page = (ROOT / "docs" / "api" / f"{package}.md").read_text(encoding="utf-8")
    names = re.findall(rf"^::: {package}\.(\w+)$", page, re.MULTILINE)
    assert sorted(["__version__", *names]) == sorted(importlib.import_module(package).__all__)


def test_the_readmes_name_every_page_and_have_at_most_180_lines() -> None:
    readme, chinese = (path.read_text(encoding="utf-8") for path in README)
    assert GENERATOR["index"]() in readme
    assert all(f"](docs/tools/{path.name})" in readme for path in TOOLS)
    assert all(f"docs/verbs/{path.name}" in chinese for path in VERBS)
    assert max(len(text.splitlines()) for text in (readme, chinese)) <= 180
