"""From embeddings to a run: the queries' embeddings, their best passages, exactly or by candidates, and the recall."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow.compute as pc
import torch
from sentence_transformers import SentenceTransformer

from baselines.models.devices import devices_of, dtype_of
from baselines.models.encoder import Encoder
from baselines.models.loading import fingerprint, moved, open_encoder
from baselines.models.settings import ModelSettings
from baselines.passages import Passages, open_passages
from baselines.run.record import asked_of, record, write_manifest
from baselines.runs.sets import read_queries
from baselines.samples import sample_rows
from baselines.vectors import scan
from baselines.vectors.embeddings import Vectors, open_vectors
from baselines.vectors.engines import FaissEngine, Floats, Halves, Rows, TorchEngine
from baselines.vectors.some import SomeVectors
from builders.common.command import InputError, log, progress
from builders.common.files import check_file
from builders.common.groups import install
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, write_run

Found = Iterator[tuple[Rows, Floats]]  # of each query: rows of passages, their scores


def retrieve(args: argparse.Namespace) -> None:
    """Write the run that the options of `search` ask for; print its recall where it is not exact."""
    check_file(args.out)
    release, configs = open_release(args.release), SETS[args.set]
    vectors = open_vectors(args.passages)
    vectors.check("passages", release, configs.corpus, "corpus")
    devices = devices_of(args.device)
    _set_threads(args.threads)
    kind = FaissEngine if _engine_name(args, devices[0]) == "faiss" else TorchEngine
    ids = [query for query, _ in read_queries(release, args.split, configs.queries)]
    if not ids:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    queries, queries_in = _queries(args, release, configs.queries, vectors, devices[0])
    passages = open_passages(release, configs.corpus)
    chosen: Rows | None = None
    if args.sample:
        chosen = sample_rows(release, configs.corpus, args.sample)
        vectors = SomeVectors(vectors.path, vectors.manifest, chosen)
    count = max(args.top_k, args.candidates or 2 * args.top_k)

    def exact(some: Halves) -> Found:
        # An engine of 32 bits whatever --precision says: this is also what other results are compared with.
        engines = [kind(some, count, device) for device in devices]
        return scan.search(vectors, some, engines, args.top_k, count, ranks)

    def ranks() -> Rows:
        every = id_ranks(release, configs.corpus)
        return every if chosen is None else every[chosen]

    if args.precision == "fp32":
        found, checked = exact(queries), np.array([], np.int64)
    else:
        candidates = scan.candidates(vectors, [TorchEngine(queries, count, each, "bf16") for each in devices], count)[1]
        found, checked = scan.rescored(queries, vectors, candidates, args.top_k), _sample(len(ids), args.check_queries)
    kept: dict[int, set[str]] = {}
    hits = _keeping(named(found, passages, args.top_k, chosen), kept, set(checked.tolist()))
    bar = progress(hits, total=len(ids), unit="query", label="search")
    tag = "dense-exact"
    lines = write_run(args.out, zip(ids, bar, strict=True), tag=tag)
    precisions = {"passages": _precision_of(vectors), "queries": queries_in, "search": args.precision}
    asked = {**asked_of(args, release, "dense"), "index": "exact", "sample": args.sample, "precision": precisions}
    write_manifest(args.out, record(vectors.manifest["model"], asked), tag, len(ids), lines)
    said = ", ".join(f"{name} {precision}" for name, precision in precisions.items())
    log.info("%s: %d lines for %d queries; precision: %s", args.out, lines, len(ids), said)
    if len(checked):
        best = zip(checked.tolist(), named(exact(queries[checked]), passages, args.top_k, chosen), strict=True)
        shares = [len({corpus for corpus, _ in own} & kept[query]) / len(own) for query, own in best]
        _print_recall(args, float(np.mean(shares)), len(shares))


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
        if importlib.util.find_spec("faiss"):
            import faiss

            faiss.omp_set_num_threads(threads)


def _engine_name(args: argparse.Namespace, device: str) -> str:
    """``torch`` or ``faiss``, whichever the options ask for and the machine has; else an :class:`InputError`."""
    has_faiss = importlib.util.find_spec("faiss") is not None
    if args.precision == "bf16" and args.engine == "faiss":
        raise InputError("--precision bf16 goes with --engine torch")
    if not has_faiss and args.engine == "faiss":
        raise InputError(f"FAISS is not installed: {install('builders')}; or --engine torch")
    if args.precision == "bf16":
        return "torch"
    return args.engine or ("faiss" if has_faiss and device == "cpu" else "torch")


def _queries(
    args: argparse.Namespace, release: Release, config: str, vectors: Vectors, device: str
) -> tuple[Halves, str]:
    """The queries' embeddings, by the model that the passages were encoded by, and their precision.

    On one device: `encode --queries` is there for more. Raises :class:`InputError` for another model.
    """
    if args.queries:
        given = _given_queries(args, release, config, vectors)
        return given.all(), _precision_of(given)
    model = encoding_model(args.model, vectors, device, args.dtype, args.revision)
    texts = [text for _, text in read_queries(release, args.split, config)]
    return Encoder(model, "query").encode(texts), dtype_of(args.dtype, device)


def _precision_of(vectors: Vectors) -> str:
    """The precision that embeddings were computed in, as their manifest says."""
    return str(vectors.manifest["model"].get("computed_in", "unknown"))


def _warn_of_precision(vectors: Vectors, queries_in: str) -> None:
    if (passages_in := _precision_of(vectors)) != queries_in:
        log.warning("%s: the passages were encoded in %s, the queries in %s", vectors.path, passages_in, queries_in)


def encoding_model(name: str, vectors: Vectors, device: str, dtype: str, revision: str = "") -> SentenceTransformer:
    """A dual-encoder for queries, of the given device and ``--dtype``.

    Raises :class:`InputError` where it is not the one that encoded the passages ``vectors``.
    """
    wanted = vectors.manifest["model"]
    # Cut and prompted as the passages were.
    said = {"max_length": wanted.get("max_length"), **(wanted.get("settings") or {})}
    model = open_encoder(ModelSettings(name, revision=revision, **said))
    if fingerprint(model) != wanted["fingerprint"]:
        raise InputError(
            f"is not the model that encoded {vectors.path} ({wanted['name']!r}): weights or settings differ",
            path=name,
        )
    precision = dtype_of(dtype, device)
    _warn_of_precision(vectors, precision)
    found: SentenceTransformer = moved(model, device, precision)
    return found


def _given_queries(args: argparse.Namespace, release: Release, config: str, vectors: Vectors) -> Vectors:
    """The embeddings that ``--queries`` names."""
    given, wanted = open_vectors(args.queries), vectors.manifest["model"]
    given.check("queries", release, config, args.split)
    if given.dim != vectors.dim:
        raise InputError(f"has {given.dim} dimensions, {vectors.path} has {vectors.dim}", path=given.path)
    if given.manifest["model"]["fingerprint"] != wanted["fingerprint"]:
        raise InputError(
            f"was encoded by another model ({given.manifest['model']['name']!r}) than {vectors.path} "
            f"({wanted['name']!r})",
            path=given.path,
        )
    _warn_of_precision(vectors, _precision_of(given))
    return given


def id_ranks(release: Release, config: str, split: str = "corpus") -> Rows:
    """Each passage's rank in the order of the corpus ids, shape (passages,)."""
    ids = release.table(config, split, ["_id"]).column("_id")
    ranks = np.empty(len(ids), np.int64)
    ranks[pc.sort_indices(ids).to_numpy()] = np.arange(len(ids))
    return ranks


def named(
    found: Iterable[tuple[Rows, Floats]], passages: Passages, top_k: int, chosen: Rows | None = None
) -> Iterator[list[Hit]]:
    """The ``top_k`` best of each query: scores falling, ties by corpus id.

    ``chosen``: the rows of the collection that were searched, of which ``found`` has the numbers; None: all.
    """
    for some, scores in found:
        rows = some if chosen is None else chosen[some]
        # The shortest digits that tell 32-bit numbers apart.
        hits = zip(passages.ids(rows.tolist()), (float(str(score)) for score in scores), strict=True)
        yield sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]


def _sample(queries: int, wanted: int) -> Rows:
    """The numbers of at most ``wanted`` queries, evenly spaced."""
    return np.unique(np.linspace(0, queries - 1, min(wanted, queries)).astype(np.int64))


def _keeping(hits: Iterable[list[Hit]], kept: dict[int, set[str]], wanted: set[int]) -> Iterator[list[Hit]]:
    """``hits``, query by query; on the way the passages of the ``wanted`` queries are put into ``kept``."""
    for number, each in enumerate(hits):
        if number in wanted:
            kept[number] = {corpus for corpus, _ in each}
        yield each


def _print_recall(args: argparse.Namespace, recall: float, queries: int) -> None:
    if args.format == "json":
        result = {"index": "exact", "precision": args.precision, "top_k": args.top_k, "queries": queries}
        print(json.dumps(result | {"recall_against_exact": recall}))
    else:
        print(f"recall of the top {args.top_k} against exact search, {queries} queries: {recall:.4f}")
