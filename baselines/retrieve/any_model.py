r"""Any model in one command: encode, search, evaluate.

MODEL is a name on the hub or a folder. An option determines a setting (prompts, pooling, lengths), else the model's
family (baselines/models.toml, with a source for each value), else the model's files. The family's pooling applies only
to models without files of sentence-transformers. The settings and their sources are printed above the scores.
RUN.manifest.json records the settings, their sources and the release's fingerprints. The last column of RUN has the
model's name, its commit, and the first digits of a hash of everything that affects the run.

The index is cached, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes. Another split of the same release uses
the same index. An interrupted command resumes when it is started again.

With --over RUN, MODEL is the second stage of a search. MODEL scores only the --top-k best passages of each query in
RUN, as `rerank` does, and may be a cross-encoder, too. The measures of both stages are printed.

--trust-remote-code runs Python code of the model's repository on this machine. Read the code first, and add --revision.

examples:

  python -m baselines run BAAI/bge-small-zh-v1.5 --release build/sample --split dev
  python -m baselines run Qwen/Qwen3-Embedding-0.6B --release DIR --prompt-name duretrieval --out RUN
  python -m baselines run ORG/NAME --release DIR --over bm25.dev.run.gz --top-k 20
  python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\nQuery: ' --pooling cls
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from baselines.core.run_manifest import tag_of, write_manifest
from baselines.core.settings import DEVICE, add_model_settings, add_options
from baselines.measure.evaluate import evaluate_runs
from baselines.measure.measures import measure_run
from baselines.measure.qrels import add_set, read_queries, release_qrels
from baselines.retrieve.rerank import rescored
from builders.core.command import add_format
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, read_run, write_run

Line = tuple[str, str, str]  # name, value, source
_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="name on the hub, or a folder")
    add_options(parser, "--release", "--split", "--top-k")
    add_set(parser)
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="run to write, gzipped if it ends in .gz (default: NAME.SPLIT.run.gz)"
    )
    parser.add_argument("--over", type=Path, metavar="RUN", help="score only the best passages of this run")
    add_model_settings(parser)
    parser.add_argument(
        "--kind", metavar="KIND", help="dense, static, sparse or multi-vector (default: by the model's files)"
    )
    parser.add_argument(
        "--index",
        type=Path,
        metavar="DIR",
        help="directory of the index, or DIR.parts with --over (default: cached)",
    )
    add_options(parser, "--batch-tokens", "--tokenizers", "--backend", *DEVICE)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.retrieve.models import shown_name

    out = args.out or Path(f"{shown_name(args.model).rpartition('/')[2]}.{args.split}.run.gz")
    check_file(out)
    release = open_release(args.release)
    start, stages = time.perf_counter(), []
    if args.over:
        manifest, cost = rescored(argparse.Namespace(**vars(args) | {"run": args.over, "out": out}), release)
        stages = [
            ("first stage", args.over.name, "0 passages encoded"),
            ("second stage", f"top {args.top_k}", f"{cost}, {time.perf_counter() - start:.1f} s"),
        ]
    else:
        found, queries, hits = search(args, release)
        lines = write_run(out, hits, tag=tag_of(found))
        manifest = write_manifest(out, found, tag_of(found), queries, lines)
        log.info("%s: %d lines for %d queries; settings: %s.manifest.json", out, lines, queries, out)
    _print(args, release, [*filter(None, [args.over]), out], manifest, stages)


def search(args: argparse.Namespace, release: Release) -> tuple[dict[str, Any], int, Iterator[tuple[str, list[Hit]]]]:
    """Search by a model. Return the run's record, the number of queries, and each (query id, best passages).

    ``args`` has the options of `run`, but ``release``, ``out`` and ``format`` are not read. The passages are encoded
    before this function returns. The queries are encoded when the iterator is read.
    """
    from baselines.retrieve.families import opened

    configs = SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"the split {args.split!r} has no queries", path=release.path)
    found, retriever, folder = opened(args, release)
    return found, len(queries), retriever.hits(release, configs.corpus, folder, queries, args.top_k)


def _print(
    args: argparse.Namespace, release: Release, runs: list[Path], manifest: dict[str, Any], stages: list[Line]
) -> None:
    """Print the header. If the split has judgments, print the output of `evaluate` for ``runs``, too."""
    judged = (SETS[args.set].qrels, args.split) in release.splits()
    if args.format == "json":
        qrels = release_qrels(release, args.split, args.set) if judged else None
        *first, figures = [qrels and measure_run(read_run(path), qrels)[0] for path in runs]
        found = {"manifest": manifest, "evaluation": figures, **({"first_stage": first[0]} if first else {})}
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return
    print(header(manifest, stages) + "\n" * judged)
    if not judged:
        log.warning("%s: the split %s has no judgments, so nothing is evaluated", args.release, args.split)
        return
    print(evaluate_runs(runs, release=release, set=args.set, split=args.split))


def header(found: dict[str, Any], more: Sequence[Line] = ()) -> str:
    """Format a run's record as text, with a line for each setting: name, value and source. ``more`` lines follow."""
    model = found["model"]
    commit = f" at {model['commit'][:8]}" if model.get("commit") else ""
    family = "" if model.get("family", "none") == "none" else f"models.toml, {model['family']}"
    lines = [("model", f"{model['name']}{commit}", family), ("kind", found["kind"], "")]
    for key, each in found.get("used", {}).items():
        if each["value"] is not None:
            lines.append((_TITLES.get(key, key.replace("_", " ")), shown(each["value"]), each["says"]))
    lines += [*([("precision", model["computed_in"], "")] if "computed_in" in model else []), *more]
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {source}".rstrip() for name, value, source in lines)


def shown(value: Any) -> str:
    """Format a value for people. Prompts are quoted, with line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)
