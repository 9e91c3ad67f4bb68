"""Rendered pages: a headless Chromium, and the tags and text of HTML."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path


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
