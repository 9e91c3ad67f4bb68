"""Hooks of the documentation site, which MkDocs calls while ``make docs`` builds the pages.

The pages in docs/ can also be read on a code host, where links lead to any file of the repository. The site has no
address of a repository. So a file outside docs/ that a page links to becomes a page of the site: Markdown as it is,
other text as code. Notebooks become pages with their stored outputs.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbconvert
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parent.parent
# The front pages of the code host, and the pages of the site with the same content.
FRONT_PAGES = {"README.md": "index.md", "README.zh.md": "zh/index.md", "docs/README.md": "index.md"}
# English page -> the same page in Chinese.
CHINESE = {
    "index.md": "zh/index.md",
    "install.md": "zh/install.md",
    "evaluate.md": "zh/evaluate.md",
    "load.md": "zh/data.md",
}
# A link: the text's closing bracket, the path and the anchor. Images are links, too.
LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
# Weight of a page in the search: questions first, code and pages for developers last.
FAQ_BOOST = 2
OUTSIDE_BOOST = 0.5
CHINESE_LINE_END = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u9fff\uff00-\uffef])")
# Links to other languages in a page's head. The theme would look for a site of its own behind each of them.
ALTERNATE = re.compile(r'<link rel="?alternate"? [^>]*>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of every verb into the navigation, below the page ``verbs.md``."""
    verb_pages: list[Any] = ["verbs.md"]
    for path in sorted((ROOT / "docs" / "verbs").glob("*.md")):
        program, verb = path.stem.split("-", 1)
        verb_pages.append({f"{program} {verb}": f"verbs/{path.name}"})
    config.nav = [_replace_entry(entry, "verbs.md", {"Verbs": verb_pages}) for entry in config.nav or []]
    return config


def _replace_entry(entry: Any, old: str, new: Any) -> Any:
    """Return an entry of the navigation in which ``new`` stands for the entry ``old``."""
    if entry == old:
        return new
    if isinstance(entry, dict):
        replaced = {}
        for title, children in entry.items():
            replaced[title] = _replace_entry(children, old, new)
        return replaced
    if isinstance(entry, list):
        return [_replace_entry(child, old, new) for child in entry]
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and for each file outside docs/ that a page links to."""
    # Pages whose links are not followed yet: path in the repository, and Markdown.
    waiting: list[tuple[str, str]] = []
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook_markdown = convert_notebook(ROOT / "docs" / file.src_uri)
            files.remove(file)
            files.append(File.generated(config, site_uri(f"docs/{file.src_uri}"), content=notebook_markdown))
            waiting.append((f"docs/{file.src_uri}", notebook_markdown))
        elif file.is_documentation_page():
            waiting.append((f"docs/{file.src_uri}", file.content_string))
    while waiting:
        repository_path, markdown = waiting.pop()
        for target in linked_paths(repository_path, markdown):
            page_uri = site_uri(target)
            is_outside = not target.startswith(("docs/", "../")) and (ROOT / target).is_file()
            if not is_outside or files.get_file_from_path(page_uri):
                continue
            page_markdown = page_of_file(target)
            page = File.generated(config, page_uri, content=page_markdown)
            page.inclusion = InclusionLevel.NOT_IN_NAV  # the navigation may name it, but need not
            files.append(page)
            waiting.append((target, page_markdown))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site, and remove the notes ``(not run: ...)`` of code blocks.

    Lines of Chinese are joined, because a browser would show a space at the end of each line.
    """
    if page.file.src_uri == "faq.md":
        page.meta["search"] = {"boost": FAQ_BOOST}
    elif not _repository_path(page.file.src_uri).startswith("docs/"):
        page.meta["search"] = {"boost": OUTSIDE_BOOST}

    def change_text(text: str) -> str:
        return CHINESE_LINE_END.sub("", LINK.sub(lambda link: _site_link(link, page), text))

    return change_outside_code(FENCE.sub(r"\1\2\n\3\1", markdown), change_text)


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, **_: Any) -> dict[str, Any]:
    """Let the language switch lead to the same page in the other language, and set the language of the page."""
    uri = page.file.src_uri
    english = next((english for english, chinese in CHINESE.items() if uri == chinese), uri)
    chinese = CHINESE.get(english, "zh/index.md")
    config.theme["language"] = "zh" if uri.startswith("zh/") else "en"
    for alternate, target in zip(config.extra["alternate"], (english, chinese), strict=True):
        alternate["link"] = _page_url(target)
    return context


def on_post_page(output: str, **_: Any) -> str:
    """Remove the links to other languages from the page's head. The language switch has them."""
    return ALTERNATE.sub("", output)


def convert_notebook(path: Path) -> str:
    """Return a notebook with its stored outputs as Markdown. Data frames get the theme's style of tables."""
    notebook = nbformat.read(path, as_version=4)
    markdown, _ = nbconvert.MarkdownExporter().from_notebook_node(notebook)
    markdown = re.sub(r"<style scoped>.*?</style>\n", "", markdown, flags=re.DOTALL)
    return markdown.replace('<table border="1" class="dataframe">', "<table>")


def page_of_file(repository_path: str) -> str:
    """Return the Markdown of a page that shows a file of the repository."""
    text = (ROOT / repository_path).read_text(encoding="utf-8")
    if repository_path.endswith(".md"):
        return text
    try:
        language = get_lexer_for_filename(repository_path).aliases[0]
    except ClassNotFound:
        language = "text"
    return f"# {repository_path}\n\n````{language}\n{text}````\n"


def linked_paths(repository_path: str, markdown: str) -> Iterator[str]:
    """Yield the path in the repository of each file that a page links to."""
    targets: list[str] = []

    def collect(text: str) -> str:
        targets.extend(target for target, _ in LINK.findall(text))
        return text

    change_outside_code(markdown, collect)
    for target in targets:
        if "://" not in target:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(repository_path), target))


def site_uri(repository_path: str) -> str:
    """Return the path in the site's sources of a file of the repository."""
    if repository_path in FRONT_PAGES:
        return FRONT_PAGES[repository_path]
    if repository_path.startswith("docs/"):
        uri = repository_path.removeprefix("docs/")
        return f"{uri.removesuffix('.ipynb')}.md" if uri.endswith(".ipynb") else uri
    return repository_path if repository_path.endswith(".md") else f"{repository_path}.md"


def change_outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to the text between code blocks."""
    parts: list[str] = []
    end = 0
    for block in FENCE.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    parts.append(change(markdown[end:]))
    return "".join(parts)


def _site_link(link: re.Match[str], page: Page) -> str:
    target, anchor = link.groups()
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    uri = page.file.src_uri
    repository_path = _repository_path(uri)
    linked_path = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path), target))
    return f"]({posixpath.relpath(site_uri(linked_path), posixpath.dirname(uri) or '.')}{anchor})"


def _repository_path(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    notebook = f"docs/{uri.removesuffix('.md')}.ipynb"
    for path in (f"docs/{uri}", notebook, uri):
        if (ROOT / path).is_file():
            return path
    return uri.removesuffix(".md")  # the page of a file of code


def _page_url(uri: str) -> str:
    """Return the address of a page, relative to the site."""
    # MkDocs makes the page of a folder from index.md or README.md.
    is_page_of_folder = posixpath.basename(uri) in ("index.md", "README.md")
    return posixpath.join(posixpath.dirname(uri), "" if is_page_of_folder else Path(uri).stem + "/")
