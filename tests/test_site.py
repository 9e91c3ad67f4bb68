"""The documentation site (``make docs``): dead links and unknown names fail, and search knows Chinese words."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs", reason="needs the group docs: make setup-docs")
VALID = "# Start\n\n[Measures](more.md#measures), [a file](../code.toml), `检索`评测。\n"


def build_site(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Build the site of a project's folder as `make docs` does."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """A project of two pages, with the settings and hooks of this project."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = re.sub(r"^nav:\n.*", "nav: [index.md, more.md]\n", settings, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "code.toml").write_text("[section]\n", encoding="utf-8")
    for name in ("baselines", "builders"):
        (tmp_path / name).symlink_to(ROOT / name)
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("site_hooks.py", "site_signatures.py", "site.css"):
        shutil.copy(ROOT / "docs" / name, docs)
    (docs / "index.md").write_text(VALID, encoding="utf-8")
    (docs / "more.md").write_text("# More\n\n## Measures\n", encoding="utf-8")
    return tmp_path


def test_a_linked_file_outside_the_pages_becomes_a_page_and_search_knows_chinese_words(small_project: Path) -> None:
    built = build_site(small_project)
    assert built.returncode == 0, built.stderr
    site = small_project / "build" / "site"
    assert "section" in (site / "code.toml" / "index.html").read_text(encoding="utf-8")
    search = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert search["config"]["lang"] == ["en", "zh"]
    assert any("检索\u200b" in entry["text"] for entry in search["docs"])  # jieba marks the ends of words


def test_the_language_switch_of_a_folders_readme_leads_to_the_page_itself(small_project: Path) -> None:
    (small_project / "examples").mkdir()
    (small_project / "examples" / "README.md").write_text("# Examples\n", encoding="utf-8")
    (small_project / "docs" / "more.md").write_text("# More\n\n[examples](../examples/README.md)\n", encoding="utf-8")
    (small_project / "docs" / "index.md").write_text("# Start\n", encoding="utf-8")
    built = build_site(small_project)
    assert built.returncode == 0, built.stderr
    page = (small_project / "build" / "site" / "examples" / "index.html").read_text(encoding="utf-8")
    assert '<a href="./" hreflang="en"' in page


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("[gone](nowhere.md)", "nowhere.md"),
        ("[gone](more.md#nothing)", "#nothing"),
        ("[gone](../nothing.py)", "nothing.py"),
        ("::: baselines.nothing", "baselines.nothing"),
    ],
)
def test_a_dead_link_or_an_unknown_name_fails(small_project: Path, mistake: str, message: str) -> None:
    (small_project / "docs" / "index.md").write_text(f"# Start\n\n{mistake}\n", encoding="utf-8")
    built = build_site(small_project)
    assert built.returncode == 1
    assert message in built.stderr


def test_a_page_that_the_navigation_lacks_fails(small_project: Path) -> None:
    (small_project / "docs" / "third.md").write_text("# Third\n", encoding="utf-8")
    built = build_site(small_project)
    assert built.returncode == 1
    assert "third.md" in built.stderr


def test_pages_of_the_site_fetch_nothing_from_other_hosts(small_project: Path) -> None:
    assert build_site(small_project).returncode == 0
    page = (small_project / "build" / "site" / "index.html").read_text(encoding="utf-8")
    # squidfunk.github.io is the theme's credit, a link.
    assert not re.search(r"""(src|href)=["']?(https?:)?//(?!squidfunk)""", page)
