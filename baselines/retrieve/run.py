r"""Any model in one command: encode, search, evaluate.

MODEL is a name on the hub or a folder. How it is used (prompts, pooling, lengths) is said by the options; where they
say nothing by the declarations of its family (baselines/models.toml, each value with its source); else by the model's
own files. What was used, and who said it, is printed above the figures, and stands in RUN.manifest.json with the
release's fingerprints; each line of the run names the model, its commit and that manifest (last column). For a model
of no family the defaults are said in a warning.

The index is kept, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes: started again, the command goes on where it
was, and another split needs the queries alone.

--trust-remote-code runs Python code of the model's repository on this machine. Look at it first, and give --revision.

examples:

  python -m baselines run BAAI/bge-small-zh-v1.5 --release build/sample --split dev
  python -m baselines run Qwen/Qwen3-Embedding-0.6B --release DIR --prompt-name duretrieval --out RUN
  python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\nQuery: ' --pooling cls
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.measure import evaluate
from baselines.measure.qrels import add_set, read_queries, release_qrels
from baselines.retrieve.run_manifest import asked_of, record, tag_of, write_manifest
from baselines.retrieve.settings import add_batch_tokens, add_device, add_revision
from builders.core.cache import caches
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.folders import key_of
from builders.core.hub import check_models
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

if TYPE_CHECKING:
    from baselines.retrieve.families import Resolved

POOLINGS = ("cls", "mean", "lasttoken")
_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name on the hub, or a folder")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="the run; gzipped where it ends in .gz (default: NAME.SPLIT.run.gz)"
    )
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    _add_use(parser.add_argument_group("how the model is used"))
    parser.add_argument("--kind", metavar="KIND", help="what the model is (default: as its own files say)")
    parser.add_argument("--index", type=Path, metavar="DIR", help="where its index is kept (default: in the cache)")
    add_batch_tokens(parser)
    add_device(parser)
    add_format(parser)


def _add_use(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--family", metavar="F", help="of models.toml (default: by the model's name; none: no family)")
    group.add_argument("--query-prompt", metavar="TEXT", help="put before every query; '' for nothing")
    group.add_argument("--passage-prompt", metavar="TEXT", help="put before every passage; '' for nothing")
    group.add_argument(
        "--prompt-name", metavar="NAME", help="the query's prompt: one of the family's or the model's own"
    )
    group.add_argument("--pooling", choices=POOLINGS, help="how the vectors of a text's tokens become one")
    group.add_argument("--max-length", type=whole_number(4), metavar="N", help="tokens of a text at most")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="the first N dimensions alone")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="embeddings of unit length, or as they are (default: unit length where compared by cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="what embeddings are compared by")
    group.add_argument("--trust-remote-code", action="store_true", help="run code of the model's repository")
    add_revision(group)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.retrieve import devices, families, kinds, models

    out = args.out or Path(f"{models.shown_name(args.model).rpartition('/')[2]}.{args.split}.run.gz")
    check_file(out)
    release, configs = open_release(args.release), SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    on, model = devices.devices_of(args.device), families.resolve(args)
    work = devices.Work(on, devices.dtype_of(args.dtype, on[0]), args.batch_tokens, args.tokenizers)
    retriever = kinds.open_retriever(model.settings, work, model.kind)
    about = retriever.about()
    found = record_of(model, about, asked_of(args, release, model.kind))
    _warn(model, found, families.families()[model.family].values if model.family else {})
    key = [model.kind, about, configs.corpus, release.fingerprint(configs.corpus, "corpus")]
    folder = args.index or caches() / "indexes" / key_of(key)
    log.info("the index: %s", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    retriever.index(release, configs.corpus, folder)
    hits = retriever.search(release, configs.corpus, folder, [text for _, text in queries], args.top_k)
    bar = progress(hits, total=len(queries), unit="query", label="search")
    lines = write_run(out, zip((query for query, _ in queries), bar, strict=True), tag=tag_of(found))
    manifest = write_manifest(out, found, tag_of(found), len(queries), lines)
    log.info("%s: %d lines for %d queries; how it was made: %s.manifest.json", out, lines, len(queries), out)
    _print(args, release, out, manifest)


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


def record_of(model: Resolved, about: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The :func:`record` of a model that `run` uses.

    Args:
        model: its settings.
        about: of its retriever (:meth:`.kinds.Retriever.about`).
        asked: see :func:`record`.
    """
    from baselines.retrieve.models import shown_name

    settings = {key: {"value": value, "says": model.source(key)} for key, value in about["used"].items()}
    described = {
        "name": shown_name(model.settings.name),
        "commit": model.settings.revision,
        "family": model.family or "none",
        "trust_remote_code": model.settings.trust_remote_code,
        **{key: value for key, value in about.items() if key != "used"},
    }
    return record(described, {"used": settings, **asked})


def header(found: dict[str, Any]) -> str:
    """A record as text, a line a setting: its value, and who says it."""
    model = found["model"]
    commit = f" at {model['commit'][:8]}" if model["commit"] else ""
    family = "" if model["family"] == "none" else f"models.toml, {model['family']}"
    lines = [("model", f"{model['name']}{commit}", family), ("kind", found["kind"], "")]
    for key, each in _settings(found):
        lines.append((_TITLES.get(key, key.replace("_", " ")), shown(each["value"]), each["says"]))
    lines += [("precision", model["computed_in"], "")] if "computed_in" in model else []
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {who}".rstrip() for name, value, who in lines)


def _settings(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The settings that have a value: the others are worth no line."""
    return [(key, each) for key, each in found["used"].items() if each["value"] is not None]


def shown(value: Any) -> str:
    """A value for people: prompts quoted, with their line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)


def _warn(model: Resolved, found: dict[str, Any], declared: dict[str, Any]) -> None:
    """Warn of the defaults of a model of no family, and of a model whose own files differ from its family's pooling."""
    unsaid = [(key, each) for key, each in _settings(found) if key not in model.sources]
    if not model.family:
        used = ", ".join(f"{key.replace('_', ' ')} {shown(each['value'])} ({each['says']})" for key, each in unsaid)
        log.warning("%s is of no family in models.toml; used are %s", model.settings.name, used or "the options alone")
    own, wanted = dict(unsaid).get("pooling", {}).get("value"), declared.get("pooling")
    if own and wanted and own != wanted:
        log.warning(
            "%s: its own files say pooling %s, models.toml (%s) %s; its own files are followed",
            *(model.settings.name, own, model.family, wanted),
        )
