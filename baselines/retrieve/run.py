r"""Any model in one command: encode, search, evaluate.

MODEL is a name on the hub or a folder. Each setting (prompts, pooling, lengths) is taken from the first of these that
has it: an option, the model's family (baselines/models.toml, with a source for each value), the model's files. An
exception is pooling: files of sentence-transformers in the model override the family. The settings and their sources
are printed above the scores. RUN.manifest.json records them with the release's fingerprints. The last column of the run
has the model's name, its commit, and the first digits of a hash of everything that affects the run.

The index is cached, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes. An interrupted command resumes when it is
started again. Another split of the same release uses the same index.

--trust-remote-code runs Python code of the model's repository on this machine. Read the code first, and add --revision.

examples:

  python -m baselines run BAAI/bge-small-zh-v1.5 --release build/sample --split dev
  python -m baselines run Qwen/Qwen3-Embedding-0.6B --release DIR --prompt-name duretrieval --out RUN
  python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\nQuery: ' --pooling cls
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from baselines.measure import evaluate
from baselines.measure.qrels import add_set, read_queries, release_qrels
from baselines.retrieve.run_manifest import asked_of, record, tag_of, write_manifest
from baselines.retrieve.settings import DEVICE, add_options
from builders.core.cache import caches
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.folders import key_of
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, read_run, write_run

_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="name on the hub, or a folder")
    add_options(parser, "--release", "--split", "--top-k")
    add_set(parser)
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="run to write; .gz is gzipped (default: NAME.SPLIT.run.gz)"
    )
    group = parser.add_argument_group("settings of the model (default: its family's, else its files')")
    group.add_argument("--family", metavar="F", help="family in models.toml, or none (default: by the model's name)")
    group.add_argument("--query-prompt", metavar="TEXT", help="prompt before every query; '' for no prompt")
    group.add_argument("--passage-prompt", metavar="TEXT", help="prompt before every passage; '' for no prompt")
    group.add_argument("--prompt-name", metavar="NAME", help="query prompt of the family or the model, by its name")
    poolings = ("cls", "mean", "lasttoken")
    group.add_argument("--pooling", choices=poolings, help="pooling of token vectors into a text's vector")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="use only the first N dimensions")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale embeddings to unit length (default: if the similarity is cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="similarity of embeddings")
    add_options(group, "--max-length", "--trust-remote-code", "--revision")
    parser.add_argument(
        "--kind", metavar="KIND", help="dense, static, sparse or multi-vector (default: by the model's files)"
    )
    parser.add_argument("--index", type=Path, metavar="DIR", help="directory of the index (default: in the cache)")
    add_options(parser, "--batch-tokens", "--tokenizers", *DEVICE)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.retrieve.models import shown_name

    out = args.out or Path(f"{shown_name(args.model).rpartition('/')[2]}.{args.split}.run.gz")
    check_file(out)
    release = open_release(args.release)
    found, queries, hits = search(args, release)
    lines = write_run(out, hits, tag=tag_of(found))
    manifest = write_manifest(out, found, tag_of(found), queries, lines)
    log.info("%s: %d lines for %d queries; settings: %s.manifest.json", out, lines, queries, out)
    _print(args, release, out, manifest)


def search(args: argparse.Namespace, release: Release) -> tuple[dict[str, Any], int, Iterator[tuple[str, list[Hit]]]]:
    """Search by a model. Return the run's record, the number of queries, and each (query id, best passages).

    ``args`` has the options of `run`. Its ``release``, ``out`` and ``format`` are not read. The passages are encoded
    before this function returns. The queries are encoded when the iterator is read.
    """
    from baselines.retrieve import devices, families, index, models

    configs = SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"the split {args.split!r} has no queries", path=release.path)
    model = families.resolve(args)
    retriever = index.open_retriever(model.settings, devices.work_of(args), model.kind)
    about = dict(retriever.about)
    key = [retriever.kind, about, configs.corpus, release.fingerprint(configs.corpus, "corpus")]
    folder = args.index or caches() / "indexes" / key_of(key)
    log.info("index: %s", folder)
    used = {key: {"value": value, "says": model.source(key)} for key, value in about.pop("used").items()}
    described = {
        "name": models.shown_name(args.model),
        "commit": model.settings.revision,
        "family": model.family or families.NO_FAMILY,
        "trust_remote_code": model.settings.trust_remote_code,
        **about,
    }
    found = record(described, {"used": used, **asked_of(args, release, model.kind)})
    if not model.family:
        log.warning("%s has no family in models.toml; its settings are from options and its files", args.model)
    elif (own := used["pooling"])["says"] == families.OWN and own["value"] not in (None, model.pooling or own["value"]):
        log.warning(
            "%s: the model's files have pooling %s, but models.toml (%s) has %s; the model's files are used",
            *(args.model, own["value"], model.family, model.pooling),
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    return found, len(queries), retriever.hits(release, configs.corpus, folder, queries, args.top_k)


def _print(args: argparse.Namespace, release: Release, out: Path, manifest: dict[str, Any]) -> None:
    """Print the header and, if the split has judgments, the output of `evaluate`."""
    judged = (SETS[args.set].qrels, args.split) in release.splits()
    if args.format == "json":
        figures = evaluate.evaluate(read_run(out), release_qrels(release, args.split, args.set))[0] if judged else None
        print(json.dumps({"manifest": manifest, "evaluation": figures}, ensure_ascii=False, indent=1))
        return
    print(header(manifest) + "\n" * judged)
    if not judged:
        log.warning("%s: the split %s has no judgments, so nothing is evaluated", args.release, args.split)
        return
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = ["--release", str(args.release), "--set", args.set, "--split", args.split, str(out)]
    evaluate.run(parser.parse_args(words))


def header(found: dict[str, Any]) -> str:
    """Format a record as text, with a line for each setting: name, value and source."""
    model = found["model"]
    commit = f" at {model['commit'][:8]}" if model["commit"] else ""
    family = "" if model["family"] == "none" else f"models.toml, {model['family']}"
    lines = [("model", f"{model['name']}{commit}", family), ("kind", found["kind"], "")]
    for key, each in found["used"].items():
        if each["value"] is not None:
            lines.append((_TITLES.get(key, key.replace("_", " ")), shown(each["value"]), each["says"]))
    lines += [("precision", model["computed_in"], "")] if "computed_in" in model else []
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {source}".rstrip() for name, value, source in lines)


def shown(value: Any) -> str:
    """Format a value for people. Prompts are quoted, with line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)
