"""The verb `bm25`: search with BM25."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from baselines.core.model_options import NewRun, TopK
from baselines.core.own_functions import parse_function
from builders.core.errors import InputError, UsageError, log
from builders.core.options import Again, AtLeastOne, Excludes, Needs, NotNegative, Parsed, Placeholder, Share
from builders.core.verbs import verb
from builders.store.release_options import (
    AnySplit,
    QueriesFile,
    QuestionConfig,
    ReleasePath,
    SampleConfig,
    Seed,
    SetName,
)

if TYPE_CHECKING:
    from baselines.bm25.tokens import Analyzer
    from builders.store.runs import Run, RunColumns

    OwnFunction = Callable[[str], Any] | str
else:
    OwnFunction = Annotated[Callable, Parsed(parse_function, accepts=(object,)), Placeholder("MODULE:FUNCTION")]

# Raise this number if the same call gives another run than before.
RESULT_VERSION = 3
# Options that change no run: threads share the work. An index, a server and its certificate are places. The content of
# a file of queries is an input.
_UNCHANGING = ("threads", "index", "address", "ca_certs", "queries_file")


@verb()
def search_bm25(
    release: ReleasePath,
    *,
    split: AnySplit = "dev",
    out: NewRun | None = None,
    top_k: TopK = 50,
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    queries_file: Annotated[QueriesFile, Excludes("queries")] | None = None,
    sample: Annotated[SampleConfig, Needs("engine=numba")] | None = None,
    engine: Literal["numba", "elasticsearch"] = "numba",
    address: Annotated[str, Placeholder("URL"), Needs("engine=elasticsearch")] | None = None,
    ca_certs: Annotated[Path, Placeholder("FILE"), Needs("engine=elasticsearch")] | None = None,
    k1: Annotated[NotNegative, Excludes("tune")] = 1.2,
    b: Annotated[Share, Excludes("tune")] = 0.75,
    analyzer: Annotated[Literal["words", "characters", "bigrams", "both"], Excludes("tokenizer")] = "both",
    stop_words: Literal["keep", "drop"] | None = None,
    tokenizer: OwnFunction | None = None,
    user_dict: Annotated[
        Path,
        Placeholder("FILE"),
        Excludes("tokenizer"),
        Excludes("analyzer=characters"),
        Excludes("analyzer=bigrams"),
    ]
    | None = None,
    simplify: bool = False,
    tune: Annotated[str, Placeholder("SPLIT"), Needs("engine=numba")] | None = None,
    seed: Annotated[Seed, Needs("tune")] = 0,
    max_chars: Annotated[AtLeastOne, Placeholder("N"), Needs("engine=numba")] | None = None,
    threads: Annotated[AtLeastOne, Placeholder("N")] | None = None,
    index: Annotated[Path, Placeholder("DIR"), Needs("engine=numba")] | None = None,
    again: Again = False,
) -> "Run":
    """Search with BM25: write a TREC run of a split's queries.

    The default tokens are jieba's words and the pairs of neighbouring characters, without stop words. k1 = 1.2 and b =
    0.75 are the defaults of Elasticsearch. Only version 2 of the paper on arXiv names Elasticsearch (Section 3.1), and
    no version prints k1 and b. With --tune SPLIT, k1 and b are selected by MRR@10 on SPLIT, and RUN.tuned.json lists
    every tried value. RUN.manifest.json records the settings of the run.

    With --tokenizer, an own function splits passages and queries: it gets a text and returns a list of texts. MODULE is
    found in the current folder or on PYTHONPATH. docs/bm25.md describes the function.

    The numba engine runs in this process. The elasticsearch engine needs a server. An index is reused for the same
    corpus, analyzer and engine. The numba engine caches indexes in the folder bm25 of the
    user's cache (docs/stability.md). On a server, the name of an index begins with dureader-retrieval-.

    Args:
        out: run to write, gzipped if it ends in .gz. Without it, a call from Python writes nothing.
        engine: search engine
        address: Elasticsearch server: http(s)://[USER:PASSWORD@]HOST:PORT
        ca_certs: certificate authority (PEM) for an https --address
        k1: saturation of term counts
        b: weight of passage lengths
        analyzer: kind of tokens
        stop_words: words like 的 and 怎么 (default: drop; with --tokenizer: keep)
        tokenizer: own function, from a text to a list of texts
        user_dict: words for jieba, one in a line, with an optional frequency
        simplify: convert traditional to simplified Chinese first; needs OpenCC (default: no)
        tune: select k1 and b on 1,000 questions of this split, for example train
        seed: seed of the sample for --tune
        max_chars: read N characters of each passage (default: all)
        threads: threads (default: all cores)
        index: folder of numba indexes (default: in the cache)

    Returns:
        The run: hits by query, best first.

    Raises:
        InputError: the release lacks the split or its queries, options exclude each other, the own function or the
            dictionary is wrong, or the server fails.

    Examples:
        python -m baselines bm25 --release build/sample --split dev --out build/runs/bm25.dev.run.gz --top-k 50
        python -m baselines bm25 --release DIR --out RUN --analyzer bigrams --stop-words drop --tune train
        python -m baselines bm25 --release DIR --queries-file questions.txt --out RUN
        python -m baselines bm25 --release DIR --out RUN --engine elasticsearch --address http://localhost:9200 --k1 0.9
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.bm25.bm25_index import IndexedTexts, InvertedIndex, search_columns
    from baselines.core.run_costs import collect_costs, report_texts
    from baselines.core.run_manifest import describe_run, describe_search, manifest_path, run_outputs, write_manifest
    from baselines.measure.qrels import expect_main, read_queries
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, option_values, record_finished
    from builders.core.limits import usable_cores
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release
    from builders.store.runs import Hit, Run, write_columns
    from builders.store.verb_inputs import release_input

    if engine == "elasticsearch" and address is None:
        raise UsageError("--engine elasticsearch needs --address URL")
    # Check the input before the search.
    release = open_release(release)
    check_outputs(run_outputs(out), [queries_file, user_dict, ca_certs, release.path])
    configs = SETS[set]
    query_config = expect_main(set, "--queries", queries) or configs.queries
    own_queries = None
    if queries_file is not None:
        own_queries = open_queries(queries_file)
    query_rows = own_queries.rows if own_queries else read_queries(release, split, query_config)
    if not query_rows:
        raise InputError(f"has no queries in its split {split!r}", path=release.path)
    if tune == split and own_queries is None:
        raise UsageError(f"--tune {tune}: tuning on the searched questions inflates scores; name another split")

    # If an earlier call with the same input and options has written the run, nothing is searched.
    text_analyzer = _open_analyzer(analyzer, stop_words, tokenizer, user_dict, simplify=simplify)
    texts = IndexedTexts(release, configs.corpus, "corpus", text_analyzer, max_chars, sample)
    call = None
    if is_kept(out) and text_analyzer.has_known_source:
        # No release has the config "", and release_input skips it.
        splits = [(configs.corpus, "corpus"), (query_config, split), (sample or "", "corpus")]
        if tune:
            splits += [(configs.queries, split), (configs.queries, tune), (configs.qrels, tune)]
        inputs = {}
        if own_queries is not None:
            splits.remove((query_config, split))
            inputs["queries_file"] = own_queries.as_input()
        inputs["release"] = release_input(release, splits)
        # The function and the words count, not their names.
        arguments["stop_words"] = "drop" if text_analyzer.drop_stop_words else "keep"
        if text_analyzer.tokenizer:
            arguments["tokenizer"] = {"function": text_analyzer.tokenizer.version, "probe": texts.probe()}
        if text_analyzer.dictionary:
            arguments["user_dict"] = text_analyzer.dictionary.sha256
        call = VerbCall("bm25", RESULT_VERSION, option_values(arguments, inputs, _UNCHANGING), inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        return Run(finished.path)

    # Open the index, and select k1 and b if the call asks for it.
    threads = threads or usable_cores()
    if address is not None:
        from baselines.bm25.engine_elasticsearch import open_remote

        opened_index: InvertedIndex = open_remote(texts, address, threads, k1, b, ca_certs)
    else:
        from baselines.bm25.engine_numba import open_index

        numba_index = open_index(texts, index, threads, k1, b)
        if tune:
            from baselines.bm25.tune import TuningSettings, tune_parameters

            tuned_path = None
            if out is not None:
                tuned_path = _tuned_path(out)
            settings = TuningSettings(
                split=tune,
                searched_split=split,
                set_name=set,
                seed=seed,
                threads=threads,
                out=tuned_path,
            )
            k1, b = tune_parameters(numba_index, release, settings)
            numba_index = numba_index.with_parameters(k1, b)
        opened_index = numba_index

    # Search, and write the run with its settings.
    blocks = _with_bar(search_columns(opened_index, query_rows, top_k, threads), len(query_rows))
    model = {
        "name": "bm25",
        "engine": engine,
        "k1": k1,
        "b": b,
        "analyzer": text_analyzer.version,
        "tokenizer": text_analyzer.tokenizer and text_analyzer.tokenizer.describe(),
        "max_chars": max_chars,
    }
    search = describe_search(
        release,
        kind="bm25",
        set_name=set,
        split=split,
        top_k=top_k,
        queries=query_config,
        own_queries=own_queries,
    )
    search["sample"] = sample
    manifest = describe_run(model, search, packages=(engine, "numpy"))
    if out is None:
        hits: dict[str, list[Hit]] = {}
        for block in blocks:
            hits |= block.hits()
        return Run.in_memory("bm25", hits, manifest)

    def search_alone(query_text: str) -> list[Hit]:
        return opened_index.search(text_analyzer(query_text), top_k)

    if engine == "numba":
        search_alone(query_rows[0][1])  # compiles the engine, which is not the speed of the search
    with collect_costs() as costs:
        with report_texts("queries", len(query_rows)):
            line_count = write_columns(out, blocks, "bm25")
        if call is not None:
            costs.measure_queries(search_alone, dict(query_rows))
    write_manifest(out, manifest, "bm25", len(query_rows), line_count, costs.to_json())
    written_files = [out, manifest_path(out)]
    if tune:
        written_files.append(_tuned_path(out))
    record_finished(out, call, files=written_files)
    log.info("%s: %d lines for %d queries", out, line_count, len(query_rows))
    return Run(out)


def _open_analyzer(
    name: str, stop_words: str | None, tokenizer: OwnFunction | None, user_dict: Path | None, *, simplify: bool
) -> "Analyzer":
    """Return the analyzer of the options. Raises :class:`InputError` if the function or the dictionary is wrong."""
    from baselines.bm25.own_tokenizer import open_tokenizer
    from baselines.bm25.tokens import Analyzer
    from baselines.bm25.user_dictionary import open_dictionary

    return Analyzer(
        name,
        # The tokens of a user's function stay as they are, unless the call says otherwise.
        drop_stop_words=stop_words == "drop" or (stop_words is None and tokenizer is None),
        dictionary=None if user_dict is None else open_dictionary(user_dict),
        simplified=simplify,
        tokenizer=None if tokenizer is None else open_tokenizer(tokenizer),
    )


def _with_bar(blocks: "Iterable[RunColumns]", query_count: int) -> "Iterator[RunColumns]":
    """Yield the hits of all queries, with a bar that counts queries."""
    from builders.core.progress import show_progress

    with show_progress(total=query_count, unit="query", label="search") as bar:
        for block in blocks:
            bar.update(len(block.queries))
            yield block


def _tuned_path(out: Path) -> Path:
    """Return the path of the file that lists all tried values of a run."""
    return out.with_name(f"{out.name}.tuned.json")
