"""BM25 with a user's tokenizer, with a user's words for jieba, and with simplified Chinese."""

import datetime
import importlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bm25_corpora import hits_of, lucene_scores
from commands import ROOT, run
from releases import make_release

from baselines import InputError, search, search_bm25
from baselines.bm25 import bm25_index
from baselines.bm25.bm25_index import IndexedTexts, segment_batches
from baselines.bm25.engine_numba import open_index
from baselines.bm25.own_tokenizer import SPACE, open_tokenizer
from baselines.bm25.simplified import _converter, simplify
from baselines.bm25.tokens import DEFAULT, Analyzer
from baselines.bm25.user_dictionary import open_dictionary
from baselines.core.function_sources import UnknownSource, fingerprint_function
from builders.store.reader import open_release

Write = Callable[[str], Path]
TEXTS = ["北京的冬天很冷", "Beijing in winter is cold", "上海的夏天很热"]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes the module ``mine`` into the current folder, as an edit between two programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "mine", None)

    def write(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source, encoding="utf-8")
        sys.modules.pop("mine", None)
        return path

    return write


def corpus_of(folder: Path, texts: list[str], questions: list[str] | None = None) -> Path:
    """Write a release of these passages, whose dev questions are the passages themselves or ``questions``."""
    passages = [{"_id": f"p{number}", "title": "", "text": text} for number, text in enumerate(texts)]
    queries = [{"_id": f"q{number}", "text": text} for number, text in enumerate(questions or texts)]
    return make_release(folder / "release", {("corpus", "corpus"): passages, ("queries", "dev"): queries})


def halves(text: str) -> list[str]:
    """Split a text into runs of two characters, with the first run twice."""
    runs = [text[start : start + 2] for start in range(0, len(text), 2)]
    return runs[:1] + runs


@pytest.mark.usefixtures("own_cache")
def test_a_users_tokens_are_scored_by_lucenes_formula(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts = ["".join(rng.choices("甲乙丙丁AB", k=rng.randint(1, 12))) for _ in range(40)]
    run_by_query = search("bm25", corpus_of(tmp_path, texts), tokenizer=halves, k1=0.9, b=0.4)
    corpus = {f"p{number}": halves(text) for number, text in enumerate(texts)}
    for number, text in enumerate(texts):
        expected = lucene_scores(corpus, halves(text), k1=0.9, b=0.4)
        assert run_by_query[f"q{number}"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("own_cache")
def test_a_command_names_the_function_which_the_manifest_records(tmp_path: Path, write_module: Write) -> None:
    write_module("def cut(text):\n    return text.split(' ')\n")
    release = corpus_of(tmp_path, TEXTS, ["Beijing is"])
    options = ["--release", release, "--out", "mine.run", "--tokenizer", "mine:cut"]
    run("baselines", "bm25", options)
    assert [line.split()[2] for line in Path("mine.run").read_text().splitlines()] == ["p1"]
    manifest = json.loads(Path("mine.run.manifest.json").read_text())
    fingerprint = manifest["model"]["tokenizer"]["source"]
    assert manifest["model"]["tokenizer"]["function"] == "mine:cut"
    assert manifest["model"]["analyzer"] == f"tokenizer mine:cut {fingerprint[:16]}"
    # The finished run is reused for the unchanged function only.
    assert "already done" in run("baselines", "bm25", options).stderr
    write_module("def cut(text):\n    return text.lower().split(' ')\n")
    assert "tokenizer.function" in run("baselines", "bm25", options).stderr


CUT = """
SIZE = 2
def helper(text):
    return text
def cut(text, step=1):
    return [helper(text)[:SIZE], str(step)]
"""


@pytest.mark.parametrize(
    ("change", "is_reused"),
    [
        (("", ""), True),
        (("[helper(text)[:SIZE]", "[helper(text)[1:SIZE]"), False),  # the function
        (("step=1", "step=2"), False),  # a default
        (("SIZE = 2", "SIZE = 3"), False),  # a global name
        (("    return text\n", "    return text.lower()\n"), False),  # a function that it calls
        (("SIZE = 2", "import sys; SIZE = 2"), False),  # another statement of its module, which may load data
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_an_index_is_reused_for_the_unchanged_function(
    tmp_path: Path, write_module: Write, change: tuple[str, str], is_reused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    texts = IndexedTexts(open_release(corpus_of(tmp_path, TEXTS)))
    caplog.set_level(logging.INFO)
    for source in (CUT, CUT.replace(*change) if change[0] else CUT):
        write_module(source)
        analyzer = Analyzer("both", tokenizer=open_tokenizer("mine:cut"))
        open_index(IndexedTexts(texts.release, analyzer=analyzer), None, 1)
    first_action, second_action = [line for line in caplog.messages if line.startswith("BM25 index")]
    assert first_action.startswith("BM25 index built")
    assert second_action.startswith("BM25 index reused") == is_reused


def make_counter(offset: int) -> Callable[[str], list[str]]:
    return lambda text: [str(len(text) + offset)]


class Cutter:
    """A callable object."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, text: str) -> list[str]:
        return [text[: self.size]]

    def cut(self, text: str) -> list[str]:
        return self(text)


def test_a_fingerprint_has_the_closure_and_the_attributes() -> None:
    values = (make_counter(1), make_counter(2), Cutter(1), Cutter(2), Cutter(1).cut, Cutter(2).cut, halves)
    assert len({fingerprint_function(value) for value in values}) == len(values)
    assert fingerprint_function(make_counter(1)) == fingerprint_function(make_counter(1))
    assert fingerprint_function(Cutter(1).cut) == fingerprint_function(Cutter(1).cut)


def test_a_fingerprint_is_the_same_in_every_process(write_module: Write) -> None:
    words = ["的", "了", "在", "和", "是"]
    write_module(
        f"import re\nSTOP = frozenset({words})\nWORD = re.compile('[a-z]+')\n"
        "def cut(text):\n    kept = [word for word in WORD.findall(text) if word not in STOP | {'a', 'b', 'c'}]\n"
        "    return sorted(kept, key=lambda word: len(word))\n"
    )
    program = "from baselines.core.function_sources import *; import mine; print(fingerprint_function(mine.cut))"
    fingerprints = set()
    for seed in ("1", "2"):
        variables = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}."}
        done = subprocess.run([sys.executable, "-c", program], env=variables, check=True, capture_output=True)
        fingerprints.add(done.stdout)
    assert len(fingerprints) == 1


def test_a_model_that_the_first_call_opens_is_no_part_of_the_fingerprint(write_module: Write) -> None:
    write_module(
        "model = None\ndef cut(text):\n    global model\n    if model is None:\n        model = object()\n"
        "    return [text]\n"
    )
    function = importlib.import_module("mine").cut
    fingerprint = fingerprint_function(function)
    function("一")
    assert fingerprint_function(function) == fingerprint


@pytest.mark.slow
def test_words_that_a_program_adds_to_jieba_change_the_fingerprint() -> None:
    jieba = pytest.importorskip("jieba")

    def cut(text: str) -> list[str]:
        words: list[str] = jieba.lcut(text)
        return words

    fingerprint = fingerprint_function(cut)
    jieba.add_word("石墨烯电池")
    try:
        assert fingerprint_function(cut) != fingerprint
    finally:
        jieba.dt.initialized = False  # other tests need jieba's own words
        jieba.initialize()
    assert fingerprint_function(cut) == fingerprint


@pytest.mark.usefixtures("own_cache")
def test_a_function_of_unknown_source_has_no_cached_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = datetime.date(2026, 1, 1)

    def cut(text: str) -> list[str]:
        return [text, str(day)]

    release = corpus_of(tmp_path, TEXTS)
    hits = search("bm25", release, tokenizer=cut)
    assert hits["q0"].keys() == {"p0", "p1", "p2"}
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "cut: its index is not cached, because day is datetime.date(" in warning
    assert not list((tmp_path / "cache/dureader_retrieval/bm25").iterdir())
    with pytest.raises(UnknownSource):
        fingerprint_function(cut)
    cut.version = "1"  # type: ignore[attr-defined]
    assert fingerprint_function(cut)


def test_worker_processes_call_the_same_function() -> None:
    prefix = "x"
    analyzers = {
        "closure": Analyzer("both", tokenizer=open_tokenizer(lambda text: [prefix + text])),
        "object": Analyzer("both", tokenizer=open_tokenizer(Cutter(2))),
        "words": DEFAULT,
    }
    batches = [TEXTS, TEXTS[::-1]]
    for analyzer in analyzers.values():
        assert list(segment_batches(batches, 2, analyzer)) == list(segment_batches(batches, 1, analyzer))


def test_a_function_that_cannot_be_sent_runs_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def cut(text: str) -> list[str]:
        with lock:
            return [text]

    assert list(segment_batches([["一 二"]], 2, Analyzer("both", tokenizer=open_tokenizer(cut)))) == [[f"一{SPACE}二"]]
    (warning,) = caplog.messages
    assert "cut cannot be sent to worker processes (TypeError: cannot pickle" in warning


def test_a_function_of_a_library_is_sent_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = open_tokenizer("jieba:lcut")  # a method of an object with a lock
    assert tokenizer.source
    assert tokenizer.can_use_workers(["云计算"])
    assert not caplog.messages


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_words_that_only_this_process_has_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jieba = pytest.importorskip("jieba")
    jieba.add_word("石墨烯电池")
    try:
        hits = search("bm25", corpus_of(tmp_path, ["石墨烯电池", "电池"]), tokenizer=jieba.lcut)
    finally:
        jieba.dt.initialized = False
        jieba.initialize()
    assert hits["q1"].keys() == {"p1"}
    assert "depends on values that this program has changed" in caplog.text


def refuse(text: str) -> list[str]:
    raise ValueError("no\nway")


async def wait(text: str) -> list[str]:
    return [text]


BAD_FUNCTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "raises": (refuse, r"raised ValueError: no\nway"),
    "text": (lambda text: text, "expected a list of texts, found one text"),
    "None": (lambda text: None, "expected a list of texts, found None"),
    "bytes": (lambda text: [text.encode()[:3]], "expected a list of texts, found the token b'"),
    "numbers": (lambda text: [1], "expected a list of texts, found the token 1"),
    "set": (lambda text: {"一"}, "expected a list of texts, found {'一'}"),
    "surrogates": (lambda text: ["\ud800"], "a token has surrogates"),
    "async": (wait, "expected a list of texts, found a coroutine; the function must not be async"),
    "nothing": (lambda text: [" ", ""], "returned no token for any passage"),
    "random": (lambda text: [str(random.random())], "tokens differ between two calls: ['0."),
    "process": (lambda text: [str(os.getpid())], "tokens differ between two processes: ['"),
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
@pytest.mark.usefixtures("own_cache")
def test_a_wrong_function_is_one_line_with_the_function_and_the_text(tmp_path: Path, name: str) -> None:
    function, problem = BAD_FUNCTIONS[name]
    with pytest.raises(InputError) as error:
        search_bm25(corpus_of(tmp_path, TEXTS), tokenizer=function)
    message = str(error.value)
    assert message.startswith(f"--tokenizer {function.__module__}:{function.__qualname__}: {problem}")
    assert message.endswith("the text: '北京的冬天很冷'")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("target", "source", "problem"),
    [
        ("absent:cut", "", "--tokenizer absent:cut: no module 'absent' in the current folder or on PYTHONPATH"),
        ("mine:cut", "import absent", "--tokenizer mine:cut: the import failed: No module named 'absent'"),
        ("mine:cut", "1 / 0", "--tokenizer mine:cut: the import failed: ZeroDivisionError: division by zero"),
        ("mine:cut", "def cuts(text): ...", "has no 'cut'; did you mean cuts?"),
        ("mine:cut", "cut = 3", "--tokenizer mine:cut: expected a function, found 3"),
    ],
)
def test_a_function_that_cannot_be_imported_is_one_line(
    tmp_path: Path, write_module: Write, target: str, source: str, problem: str
) -> None:
    write_module(source)
    done = run(
        "baselines", "bm25", "--release", corpus_of(tmp_path, TEXTS), "--out", "r", "--tokenizer", target, code=1
    )
    assert problem in done.error


@pytest.mark.parametrize("value", ["mine.py:cut", "mine", "a/b:cut", 3, ["mine:cut"]])
def test_another_value_than_a_function_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError, match="tokenizer: expected a function, or its name as MODULE:FUNCTION"):
        search_bm25(tmp_path, tokenizer=value)


@pytest.mark.usefixtures("own_cache")
def test_the_default_is_words_and_bigrams_without_stop_words(tmp_path: Path) -> None:
    release = corpus_of(tmp_path, TEXTS)
    explicit = search_bm25(release, analyzer="both", stop_words="drop", k1=1.2, b=0.75).to_dict()
    assert search_bm25(release).to_dict() == search("bm25", release) == explicit
    assert search_bm25(release, analyzer="words", stop_words="keep").to_dict() != explicit


def test_a_user_dictionary_adds_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    text = "石墨烯电池坏了云计算平台"
    path.write_text("\ufeff云计算平台 5 n\r\n\n石墨烯电池\n", encoding="utf-8")
    dictionary = open_dictionary(path)
    # The same words as jieba with the same dictionary.
    jieba = pytest.importorskip("jieba")
    segmenter = jieba.Tokenizer()
    segmenter.tmp_dir = os.devnull
    segmenter.load_userdict(["云计算平台 5 n", "石墨烯电池"])
    assert dictionary.cut(text) == segmenter.lcut(text) == ["石墨烯电池", "坏", "了", "云计算平台"]
    assert Analyzer("words", dictionary=dictionary)(text) == dictionary.cut(text)
    assert "石墨烯电池" not in Analyzer("words")(text)
    # The key of an index has the words.
    path.write_text("云计算平台 5 n\n", encoding="utf-8")
    versions = {Analyzer("words", dictionary=known).version for known in (dictionary, open_dictionary(path), None)}
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no words"),
        ("云 计算 平台".encode(), ":1: expected WORD [FREQUENCY] [PART OF SPEECH], found '云 计算 平台'"),
        ("云\n计算 0".encode(), ":2: expected a frequency from 1 to 1,000,000,000, found 0"),
        ("云 99999999999999999999999".encode(), ":1: expected a frequency"),
        ("云\n计算".encode("gb18030"), ":1: "),
    ],
)
def test_a_wrong_dictionary_is_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        search_bm25(corpus_of(tmp_path, TEXTS), user_dict=path)
    assert str(error.value).startswith(str(path))
    assert problem in str(error.value)


@pytest.mark.parametrize("options", [{"tokenizer": halves}, {"analyzer": "bigrams"}, {"analyzer": "characters"}])
def test_a_dictionary_needs_an_analyzer_with_words(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"user_dict and .* exclude each other"):
        search_bm25(tmp_path, user_dict=tmp_path / "words.txt", **options)


@pytest.mark.usefixtures("own_cache")
def test_traditional_passages_match_simplified_questions(tmp_path: Path) -> None:
    pytest.importorskip("opencc")
    assert simplify("頭髮後來乾燥") == "头发后来干燥"
    release = corpus_of(tmp_path, ["臺灣的鐵路", "日本的公路"], ["台湾铁路"])
    assert search("bm25", release) == {}
    assert search("bm25", release, simplify=True)["q0"].keys() == {"p0"}
    assert "opencc" in Analyzer("both", simplified=True).version


def test_a_missing_opencc_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    _converter.cache_clear()
    with pytest.raises(InputError, match=r"--simplify needs opencc: pip install .*\[opencc\]"):
        search_bm25(corpus_of(tmp_path, TEXTS), simplify=True)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_many_passages_are_split_by_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = open_release(corpus_of(tmp_path, [f"{number} {text}" for number in range(300) for text in TEXTS]))
    analyzer = Analyzer("both", tokenizer=open_tokenizer(halves))
    queries = [("q", "北京的冬天")]
    expected = hits_of(open_index(IndexedTexts(release, analyzer=analyzer), tmp_path / "a", 1), queries, 1)
    monkeypatch.setattr(bm25_index, "_FEW_PASSAGES", 1)
    assert hits_of(open_index(IndexedTexts(release, analyzer=analyzer), tmp_path / "b", 2), queries, 1) == expected
