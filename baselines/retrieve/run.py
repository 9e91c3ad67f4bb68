r"""Any model in one command: encode, search, evaluate.

MODEL is a name on the hub or a folder. Each setting of it (prompts, pooling, lengths) is taken from the first of these
that has the setting: an option, the declarations of the model's family (baselines/models.toml, each value with its
source), the model's own files. The settings and their sources are printed above the scores. RUN.manifest.json records
them with the release's fingerprints. The last column of the run names the model, its commit and that manifest.

The index is kept, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes. An interrupted command resumes when it is
started again. For another split, only the queries are encoded.

--trust-remote-code runs Python code of the model's repository on this machine. Read it first, and give --revision.

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
    parser.add_argument("model", metavar="MODEL", help="a name on the hub, or a folder")
    add_options(parser, "--release", "--split", "--top-k")
    add_set(parser)
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="the run; gzipped where it ends in .gz (default: NAME.SPLIT.run.gz)"
    )
    group = parser.add_argument_group("how the model is used")
    group.add_argument("--family", metavar="F", help="of models.toml (default: by the model's name; none: no family)")
    group.add_argument("--query-prompt", metavar="TEXT", help="put before every query; '' for nothing")
    group.add_argument("--passage-prompt", metavar="TEXT", help="put before every passage; '' for nothing")
    group.add_argument(
        "--prompt-name", metavar="NAME", help="the query's prompt: one of the family's or the model's own"
    )
    poolings = ("cls", "mean", "lasttoken")
    group.add_argument("--pooling", choices=poolings, help="how the vectors of a text's tokens become one")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="the first N dimensions alone")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="embeddings of unit length, or as they are (default: unit length where compared by cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="what embeddings are compared by")
    add_options(group, "--max-length", "--trust-remote-code", "--revision")
    parser.add_argument(
        "--kind", metavar="KIND", help="dense, static, sparse or multi-vector (default: by its own files)"
    )
    parser.add_argument("--index", type=Path, metavar="DIR", help="where its index is kept (default: in the cache)")
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
    log.info("%s: %d lines for %d queries; how it was made: %s.manifest.json", out, lines, queries, out)
    _print(args, release, out, manifest)


def search(args: argparse.Namespace, release: Release) -> tuple[dict[str, Any], int, Iterator[tuple[str, list[Hit]]]]:
    """Search by a model: return the record of the run, the number of queries, and (query id, best passages) of each.

    ``args``: the options of `run`, of which ``release``, ``out`` and ``format`` are not read. The passages are encoded
    before this returns, the queries when the iterator is read.
    """
    from baselines.retrieve import devices, families, index, models

    configs = SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=release.path)
    model = families.resolve(args)
    retriever = index.open_retriever(model.settings, devices.work_of(args), model.kind)
    about = dict(retriever.about)
    key = [retriever.kind, about, configs.corpus, release.fingerprint(configs.corpus, "corpus")]
    folder = args.index or caches() / "indexes" / key_of(key)
    log.info("the index: %s", folder)
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
        log.warning("%s is of no family in models.toml: options and its own files decide", args.model)
    elif (own := used["pooling"])["says"] == families.OWN and own["value"] not in (None, model.pooling or own["value"]):
        log.warning(
            "%s: its own files say pooling %s, models.toml (%s) %s; its own files are followed",
            *(args.model, own["value"], model.family, model.pooling),
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    return found, len(queries), retriever.hits(release, configs.corpus, folder, queries, args.top_k)


def _print(args: argparse.Namespace, release: Release, out: Path, manifest: dict[str, Any]) -> None:
    """The header, then what `evaluate` prints; the header alone where the split is not judged."""
    judged = (SETS[args.set].qrels, args.split) in release.splits()
    if args.format == "json":
        figures = evaluate.evaluate(read_run(out), release_qrels(release, args.split, args.set))[0] if judged else None
        print(json.dumps({"manifest": manifest, "evaluation": figures}, ensure_ascii=False, indent=1))
        return
    print(header(manifest) + "\n" * judged)
    if not judged:
        log.warning("%s: the split %s is not judged: no figures", args.release, args.split)
        return
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = ["--release", str(args.release), "--set", args.set, "--split", args.split, str(out)]
    evaluate.run(parser.parse_args(words))


def header(found: dict[str, Any]) -> str:
    """A record as text, a line a setting that has a value: the value, and who says it."""
    model = found["model"]
    commit = f" at {model['commit'][:8]}" if model["commit"] else ""
    family = "" if model["family"] == "none" else f"models.toml, {model['family']}"
    lines = [("model", f"{model['name']}{commit}", family), ("kind", found["kind"], "")]
    for key, each in found["used"].items():
        if each["value"] is not None:
            lines.append((_TITLES.get(key, key.replace("_", " ")), shown(each["value"]), each["says"]))
    lines += [("precision", model["computed_in"], "")] if "computed_in" in model else []
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {who}".rstrip() for name, value, who in lines)


def shown(value: Any) -> str:
    """A value for people: prompts quoted, with their line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)
