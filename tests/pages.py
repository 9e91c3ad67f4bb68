"""Pages: the code blocks of README and docs/, a shell that runs their commands, a headless Chromium, tags of HTML."""

import contextlib
import glob
import io
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from commands import ROOT, output, run

README = [ROOT / "README.md", ROOT / "README.zh.md"]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md"]
PAGES = [
    *README,
    *OTHER_PAGES,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "zh").glob("*.md")),
    *sorted((ROOT / "docs" / "api").glob("*.md")),
]
TOOLS = sorted((ROOT / "docs" / "tools").glob("*.md"))
VERBS = sorted((ROOT / "docs" / "verbs").glob("*.md"))
NOT_RUN = re.compile(r"\(not run: .+\)")


class Block(NamedTuple):
    """A code block of a page. ``note``: the text after the language, such as ``(not run: needs a GPU)``."""

    language: str
    note: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.language in ("bash", "python") and not self.note


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    pattern = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    page_text = page.read_text(encoding="utf-8")
    return [Block(language, note, text) for language, note, text in pattern.findall(page_text)]


def lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a bash block, without comments, with joined lines and expanded ``$NAME``."""
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(string.Template(line).safe_substitute(variables), comments=True)
        if words and all(re.match(r"\w+=", word) for word in words):
            # A line of assignments, such as: RAW=data; OUT=release
            for assignment in words:
                name, value = assignment.rstrip(";").split("=", 1)
                variables[name] = value
        elif words:
            yield words


def is_ours(words: list[str]) -> bool:
    """True if a command runs a verb of the project."""
    return words[:2] == ["python", "-m"] and words[2] in ("builders", "baselines")


def expand_wildcards(words: list[str]) -> list[str]:
    """Replace each word that matches paths by these paths, like a shell."""
    expanded_words: list[str] = []
    for word in words:
        matching_paths = sorted(glob.glob(word))
        expanded_words += matching_paths or [word]
    return expanded_words


def shell(text: str) -> str:
    """Run the commands of a bash block. Return what they print."""
    stdout = ""
    for line_words in lines(text):
        words = expand_wildcards(line_words)
        if is_ours(words):
            stdout += run(*words[2:]).stdout
        else:
            stdout += output(words, Path.cwd())
    return stdout


def python(text: str, names: dict[str, object]) -> str:
    """Run a Python block with these global names. Return what it prints."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(compile(text, "block", "exec"), names)
    return stdout.getvalue()


def shows(block: str, printed: str) -> bool:
    """True if a ``text`` block equals the output. ``...`` matches whole lines, or the rest of a line."""
    pattern = ""
    for line in block.splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*?"
        elif line.endswith("..."):
            pattern += re.escape(line.removesuffix("...")) + r".*\n"
        else:
            pattern += re.escape(line) + r"\n"
    return re.fullmatch(pattern, printed) is not None


def chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    for program in ("chromium", "chromium-browser", "google-chrome"):
        program_path = shutil.which(program)
        if program_path:
            return program_path
    return None


def look(command: str, url: str, profile: Path) -> str:
    """Return the page at a URL as a headless Chromium shows it, in HTML."""
    words = [command, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    words += ["--disable-sync", "--disable-background-networking", "--disable-component-update"]
    words += [f"--user-data-dir={profile}", "--virtual-time-budget=60000", "--dump-dom", url]
    return subprocess.run(words, capture_output=True, text=True, timeout=400, check=True).stdout


class Seen(HTMLParser):
    """The tags and the text of an HTML page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
