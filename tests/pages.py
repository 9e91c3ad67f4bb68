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
PAGES = [*README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TOOLS = sorted((ROOT / "docs" / "tools").glob("*.md"))
VERBS = sorted((ROOT / "docs" / "verbs").glob("*.md"))
NOT_RUN = re.compile(r"\(not run: .+\)")


class Block(NamedTuple):
    language: str
    note: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.language in ("bash", "python") and not self.note


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def lines(text: str) -> Iterator[list[str]]:
    """Return the words of each command of a bash block, without comments, with joined lines and expanded ``$NAME``."""
    values: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(string.Template(line).safe_substitute(values), comments=True)
        if words and all(re.match(r"\w+=", word) for word in words):
            values |= dict(word.rstrip(";").split("=", 1) for word in words)
        elif words:
            yield words


def is_ours(words: list[str]) -> bool:
    return words[:2] == ["python", "-m"] and words[2] in ("builders", "baselines")


def shell(text: str) -> str:
    printed = ""
    for words in lines(text):
        words = [each for word in words for each in (sorted(glob.glob(word)) or [word])]
        if is_ours(words):
            printed += run(*words[2:]).stdout
        else:
            printed += output(words, Path.cwd())
    return printed


def python(text: str, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "block", "exec"), names)
    return out.getvalue()


def shows(block: str, printed: str) -> bool:
    """True if a ``text`` block equals the output. ``...`` matches whole lines, or the rest of a line."""
    pattern = ""
    for line in block.splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += re.escape(line.removesuffix("...")) + (r".*\n" if line.endswith("...") else r"\n")
    return re.fullmatch(pattern, printed) is not None


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for found in map(shutil.which, names) if found), None)


def look(command: str, url: str, profile: Path) -> str:
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    words += ["--virtual-time-budget=60000", "--dump-dom", url]
    return subprocess.run([command, *words], capture_output=True, text=True, timeout=400, check=True).stdout


class Seen(HTMLParser):
    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
