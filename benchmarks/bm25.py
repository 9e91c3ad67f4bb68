"""Compare BM25 engines on the same tokens: index time, size and memory, queries per second, agreement of the top 50.

By default the passages are random (see bm25_tokens.py). --passages, --tokens (average per passage) and --vocabulary set
their sizes. With --release DIR, the passages and queries (--split) of a release are segmented and used instead. With
--texts FILES and --questions FILE, the first --passages passages of text files are used. The files' sentences are
joined up to 120 characters.

Engines:

- numba: this project's engine
- bm25s: if installed
- pisa: pyterrier-pisa, if installed (block-max WAND)
- lucene: Pyserini, in this Python or in the Python of --pyserini. Pyserini needs a full JDK 21 or later (JAVA_HOME).

The search time of lucene does not include passing hits from Java to Python. bm25s returns numbers of passages. numba
and pisa return ids. One thread is measured in processor time, so that other load on the machine matters less. More
threads are measured in wall time.

Each engine indexes and searches in separate processes. Index memory is the largest sum (PSS) over the process tree,
sampled ten times a second. Search memory is the largest resident set. If an engine fails, or needs more memory than
--most-memory, its row shows the reason. The engines search in turns, so that other load on the machine affects all of
them equally. Speeds are medians.

Example:

  python benchmarks/bm25.py --passages 400000 --engines lucene numba bm25s --json bm25.json
"""

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bm25_tokens import made_up, of_release, of_texts, passages_of, write_for_pyserini
from common import machine, memory, parser_of, write_json

ENGINES = ["lucene", "numba", "bm25s", "pisa"]
_DEPTHS = (10, 50, 1000)  # passages per query
_COMPARED_DEPTH = 50  # passages per query whose overlap with Lucene's is computed
_WARM_UP_QUERIES = 20
_SHOWN_CHARS = 200  # of an engine's last log line
_SAMPLING_SECONDS = 0.1  # between two samples of an engine's memory


class Failed(Exception):
    """An engine failed. The message is the reason shown in the engine's row."""


@dataclass(frozen=True)
class Setup:
    """The settings of a comparison.

    Attributes:
        work: folder of tokens and indexes.
        engines: names of the engines to compare.
        threads: the larger number of threads of a search. Each engine also searches with one thread.
        repeats: searches of each case, from which the median is taken.
        query_count: number of queries.
        memory_limit: gigabytes of memory that an engine may use.
        pyserini_python: Python interpreter that has Pyserini.
    """

    work: Path
    engines: Sequence[str]
    threads: int
    repeats: int
    query_count: int
    memory_limit: float
    pyserini_python: str


class Child:
    """A process group that runs one step of one engine by bm25_engines.py. ``step`` is index or search."""

    def __init__(self, setup: Setup, engine: str, step: str) -> None:
        python = setup.pyserini_python if engine == "lucene" else sys.executable
        program = Path(__file__).with_name("bm25_engines.py")
        self.log = setup.work / f"{engine}.{step}.log"
        self.memory_limit = setup.memory_limit
        self.process = subprocess.Popen(
            [python, str(program), engine, step, str(setup.work), str(setup.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self.log, "w"),  # noqa: SIM115
            text=True,
            start_new_session=True,  # a process group, so that end() also kills the engine's own processes
        )

    def answer(self, job: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a job to the process, if any, and return the next JSON line that the process prints.

        Raises :class:`Failed` if the process ends without a line.
        """
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            if job:
                self.process.stdin.write(json.dumps(job) + "\n")
                self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:  # the process has ended
            log_lines = self.log.read_text().splitlines() or [""]
            raise Failed(f"exit status {self.process.wait()}: {log_lines[-1][:_SHOWN_CHARS]}")
        return dict(json.loads(line))

    def peak(self) -> int:
        """Return the largest resident set of the process, in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                kibibytes = int(line.split()[1])
                return round(kibibytes * 1024 / 1e6)
        raise Failed("the process has ended")

    def watched(self) -> dict[str, Any]:
        """Wait for the process, and return its figures with the largest memory of its process tree.

        Raises :class:`Failed` if the process fails or needs more than the memory limit.
        """
        peak_bytes = 0
        while self.process.poll() is None:
            peak_bytes = max(peak_bytes, memory(self.process.pid))
            if peak_bytes > self.memory_limit * 1e9:
                self.end()
                raise Failed(f"stopped: needs more than {self.memory_limit:g} GB (--most-memory)")
            time.sleep(_SAMPLING_SECONDS)
        return self.answer() | {"peak_mb": round(peak_bytes / 1e6)}

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def index(setup: Setup, engine: str) -> dict[str, Any]:
    """Return the figures of indexing with one engine, from --work if an earlier run has stored them."""
    figures_path = setup.work / f"index-{engine}.json"
    if figures_path.exists():
        stored_figures: dict[str, Any] = json.loads(figures_path.read_text(encoding="utf-8"))
        return stored_figures | {"kept": True}
    load_before = round(os.getloadavg()[0], 1)
    child = Child(setup, engine, "index")
    try:
        figures = child.watched() | {"load": load_before}
    finally:
        child.end()
    figures_path.write_text(json.dumps(figures), encoding="utf-8")
    return figures


def search(setup: Setup, rows: dict[str, dict[str, Any]], queries: list[str]) -> None:
    """Add the figures of the searches, and the overlap with Lucene's top 50, to the engines' rows.

    ``rows`` has the figures of :func:`index` of each engine, or the reason why it failed. A query is words with spaces
    between them.
    """
    children: dict[str, Child] = {}
    seconds: dict[str, dict[str, list[float]]] = {}  # of a query in each round, by engine and case
    cases = _search_cases(setup.threads)

    def ask(engine: str, texts: list[str], top_k: int, threads: int, hits_path: Path | None = None) -> float:
        """Search once, and return the seconds per query."""
        job = {"k": top_k, "threads": threads, "queries": texts, "hits": hits_path and str(hits_path)}
        job_seconds = float(children[engine].answer(job)["cpu_seconds" if threads == 1 else "seconds"])
        if children[engine].peak() > setup.memory_limit * 1e3:
            raise Failed(f"stopped: needs more than {setup.memory_limit:g} GB (--most-memory)")
        return job_seconds / len(texts)

    @contextlib.contextmanager
    def end_failed(engine: str) -> Any:
        """End an engine that fails in the block. The other engines go on."""
        try:
            yield
        except Failed as reason:
            rows[engine]["search"] = {"failed": str(reason)}
            children.pop(engine).end()

    try:
        # Open the indexes, and write the hits that are compared with Lucene's.
        for engine, row in rows.items():
            if "failed" in row["index"]:
                continue
            children[engine] = Child(setup, engine, "search")
            with end_failed(engine):
                row["search"] = children[engine].answer()
                ask(engine, queries, _COMPARED_DEPTH, setup.threads, _hits_path(setup, engine))
                seconds[engine] = {case: [] for case in cases}

        # In each round, every engine searches once, so that other load affects all engines. One thread is slow, and
        # gets half of the queries.
        for case, (top_k, threads) in cases.items():
            case_queries = queries if threads > 1 else queries[::2]
            for engine in list(children):
                with end_failed(engine):
                    ask(engine, case_queries[:_WARM_UP_QUERIES], top_k, threads)
            for _ in range(setup.repeats):
                for engine in list(children):
                    with end_failed(engine):
                        seconds[engine][case].append(ask(engine, case_queries, top_k, threads))
            print(f"{case}: done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)

        for engine, child in children.items():
            speeds = {case: round(1 / statistics.median(times), 1) for case, times in seconds[engine].items()}
            rows[engine]["search"] |= {"queries_per_second": speeds, "peak_mb": child.peak()}
            if engine != "numba" and "numba" in children:
                rows[engine]["numba_relative"] = _compare_rounds(seconds[engine], seconds["numba"])
            if "lucene" in children:
                engine_hits = json.loads(_hits_path(setup, engine).read_text(encoding="utf-8"))
                lucene_hits = json.loads(_hits_path(setup, "lucene").read_text(encoding="utf-8"))
                rows[engine]["overlap_with_lucene"] = round(overlap(engine_hits, lucene_hits), 5)
    finally:
        for child in children.values():
            child.end()


def _compare_rounds(seconds: dict[str, list[float]], own_seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return this project's speed as a multiple of another engine's: the lowest, median and highest round of a case."""
    ratios_by_case = {}
    for case, times in seconds.items():
        ratios = [time / own_time for time, own_time in zip(times, own_seconds[case], strict=True)]
        ratios_by_case[case] = [round(value, 2) for value in (min(ratios), statistics.median(ratios), max(ratios))]
    return ratios_by_case


def _search_cases(threads: int) -> dict[str, tuple[int, int]]:
    """Return (passages per query, threads) of each measured search, by its name in the figures."""
    cases = {}
    for top_k in _DEPTHS:
        for thread_count in sorted({1, threads}):
            cases[f"top {top_k}, {thread_count} threads"] = (top_k, thread_count)
    return cases


def _hits_path(setup: Setup, engine: str) -> Path:
    return setup.work / f"hits-{engine}.json"


def overlap(hits: list[list[str]], reference_hits: list[list[str]]) -> float:
    """Return the share of the passages in ``hits`` that are also in ``reference_hits``, over all queries."""
    shared_count = 0
    hit_count = 0
    for passage_ids, reference_ids in zip(hits, reference_hits, strict=True):
        shared_count += len(set(passage_ids) & set(reference_ids))
        hit_count += len(passage_ids)
    return shared_count / max(1, hit_count)


def write_tokens(
    setup: Setup,
    *,
    release: Path | None,
    texts: list[Path] | None,
    questions: Path | None,
    split: str,
    passages: int,
    tokens: int,
    vocabulary: int,
) -> None:
    """Write the tokens of a release, of text files, or of random passages, to ``setup.work``.

    Tokens of an earlier run with the same source are kept. Ends the program if they have another source.
    """
    source = [str(release), [str(path) for path in texts or []], str(questions), split, passages, tokens, vocabulary]
    source_path = setup.work / "source.json"
    if (setup.work / "queries.json").exists():
        kept_source = json.loads(source_path.read_text(encoding="utf-8")) if source_path.exists() else None
        if kept_source != source:
            sys.exit(f"{setup.work} has tokens of other options; choose another --work")
    else:
        if release:
            of_release(setup.work, release, split, setup.query_count, setup.threads)
        elif texts:
            if not questions:
                sys.exit("--texts needs --questions FILE")
            of_texts(setup.work, texts, questions, passages, setup.query_count, setup.threads)
        else:
            made_up(setup.work, passages, tokens, vocabulary, setup.query_count, setup.threads)
        source_path.write_text(json.dumps(source), encoding="utf-8")


def compare(setup: Setup) -> dict[str, Any]:
    """Index and search the tokens in ``setup.work`` with every engine, and return the figures."""
    queries = json.loads((setup.work / "queries.json").read_text(encoding="utf-8"))
    queries = queries[:: max(1, len(queries) // setup.query_count)][: setup.query_count]  # evenly spaced
    print_version = "import importlib.metadata as m; print(m.version('pyserini'))"
    pyserini = subprocess.run([setup.pyserini_python, "-c", print_version], capture_output=True, text=True)
    if "lucene" in setup.engines:
        write_for_pyserini(setup.work, setup.threads)
    rows: dict[str, dict[str, Any]] = {engine: {} for engine in setup.engines}
    installed = [
        name for name in ("numba", "numpy", "pyarrow", "bm25s", "pyterrier_pisa") if importlib.util.find_spec(name)
    ]
    result = machine(*installed)
    result["pyserini"] = pyserini.stdout.strip() or None
    result["passages"] = passages_of(setup.work)
    result["queries"] = len(queries)
    result["threads"] = setup.threads
    result["repeats"] = setup.repeats
    result["engines"] = rows
    for engine in setup.engines:
        try:
            rows[engine]["index"] = index(setup, engine)
        except Failed as reason:
            rows[engine]["index"] = {"failed": str(reason)}
        print(f"{engine}: {rows[engine]['index']}", file=sys.stderr)
    result["load_at_search"] = round(os.getloadavg()[0], 1)
    search(setup, rows, queries)
    result["load_after"] = round(os.getloadavg()[0], 1)
    _compare_with_lucene(rows)
    return result


def _compare_with_lucene(rows: dict[str, dict[str, Any]]) -> None:
    """Add the speeds relative to Lucene's to the rows of the engines that searched."""
    finished = {engine: row for engine, row in rows.items() if "queries_per_second" in row.get("search", {})}
    if "lucene" not in finished:
        return
    lucene = finished["lucene"]
    for row in finished.values():
        relative = {"index": round(lucene["index"]["seconds"] / row["index"]["seconds"], 2)}
        for case, speed in row["search"]["queries_per_second"].items():
            relative[case] = round(speed / lucene["search"]["queries_per_second"][case], 2)
        row["times_lucene"] = relative


def report(result: dict[str, Any]) -> None:
    """Print the figures as a table, and the speeds relative to Lucene's."""
    print(
        f"{result['passages']:,} passages, {result['queries']:,} queries (half of them on 1 thread), "
        f"{result['cores']} cores, {result['repeats']} repeats, load {result['load_before']} / "
        f"{result['load_at_search']} / {result['load_after']} (before / at search / after)\n"
        f"{result['versions']}, Pyserini {result['pyserini']}"
    )
    cases = list(_search_cases(result["threads"]))
    print(" | ".join(["engine ", "index s", "disk MB", "peak MB: index", "search", *cases, "overlap"]))
    for engine, row in result["engines"].items():
        index_figures = row["index"]
        search_figures = row.get("search", {})
        failure = index_figures.get("failed") or search_figures.get("failed")
        if failure:
            print(f"{engine:7} | {failure}")
            continue
        cells = [f"{engine:7}", f"{index_figures['seconds']:7.1f}", f"{index_figures['mb']:7}"]
        cells += [f"{index_figures['peak_mb']:14}", f"{search_figures['peak_mb']:6}"]
        for case in cases:
            cells.append(f"{search_figures['queries_per_second'][case]:{len(case)}.1f}")
        cells.append(str(row.get("overlap_with_lucene", "")))
        print(" | ".join(cells))
    for engine, row in result["engines"].items():
        if "numba_relative" in row:
            print(f"speed of numba relative to {engine} (lowest, median and highest round): {row['numba_relative']}")
    for engine, row in result["engines"].items():
        if "times_lucene" in row and engine != "lucene":
            print(f"speed of {engine} relative to Lucene: {row['times_lucene']}")


def main() -> None:
    parser = parser_of(__doc__, "--threads", "--repeats", "--json")
    parser.add_argument("--passages", type=int, default=400_000, help="number of random passages (default: 400000)")
    parser.add_argument("--tokens", type=int, default=170, help="average tokens of a random passage (default: 170)")
    parser.add_argument("--vocabulary", type=int, default=2_000_000, help="number of words (default: 2000000)")
    parser.add_argument("--queries", type=int, default=1_000, help="number of queries (default: 1000)")
    parser.add_argument("--release", type=Path, help="release with passages and queries (default: random passages)")
    parser.add_argument("--texts", type=Path, nargs="+", metavar="FILE", help="text files, also gzipped, as passages")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="queries for --texts, one in a line")
    parser.add_argument("--split", default="dev", help="split of the release's queries (default: dev)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["numba"], help="default: numba")
    parser.add_argument("--most-memory", type=float, default=16, metavar="GB", help="memory limit (default: 16)")
    parser.add_argument(
        "--pyserini", default=sys.executable, metavar="PYTHON", help="Python with Pyserini (default: this Python)"
    )
    parser.add_argument("--work", type=Path, help="folder to keep and reuse tokens and indexes (default: temporary)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        setup = Setup(
            work=args.work or Path(name),
            engines=args.engines,
            threads=args.threads,
            repeats=args.repeats,
            query_count=args.queries,
            memory_limit=args.most_memory,
            pyserini_python=args.pyserini,
        )
        setup.work.mkdir(parents=True, exist_ok=True)
        write_tokens(
            setup,
            release=args.release,
            texts=args.texts,
            questions=args.questions,
            split=args.split,
            passages=args.passages,
            tokens=args.tokens,
            vocabulary=args.vocabulary,
        )
        result = compare(setup)
    report(result)
    write_json(args.json, result)


if __name__ == "__main__":
    main()
