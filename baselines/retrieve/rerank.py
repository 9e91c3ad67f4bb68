"""Re-rank a run by any kind of model.

The --top-k best passages of each query are re-ranked, by default 50 as in the paper (Section 3.1). The other passages
follow in their old order, with scores just below the lowest new score. The queries keep the order of the run. An
interrupted command resumes when it is started again. Each GPU has a process.

A cross-encoder scores pairs of a query and a passage. Pairs are cut to the model's length, which is 384 tokens in the
paper (Section A.2). Scores are logits, because the sigmoids of ``CrossEncoder.predict`` tie at 1.

A dense, static, sparse or late-interaction model scores the passages as `run` does, with the same settings. Encodings
of passages are cached and reused, also from the index that `run` has cached.

--kind llm asks a language model if a passage answers the query. The score is the logit of yes minus the logit of no.
--prompt is the instruction to the language model. For other models, --prompt is put before every query.

--kind listwise asks a model behind an endpoint to sort 20 passages at a time. OPENAI_BASE_URL is the address of the
endpoint, which needs OpenAI's chat API. OPENAI_API_KEY is the endpoint's key. Queries and passages are sent to the
endpoint. The first of n passages scores n, and the last scores 1.

RUN2.manifest.json records the model, its precision, the number of encoded passages or scored pairs, and the SHA-256 of
both runs.

Example:

  python -m baselines rerank --release build/sample --split dev --run build/runs/bm25.dev.run.gz \\
    --model build/models/ce-bm25-neg --out build/runs/ce.dev.run.gz
  OPENAI_BASE_URL=http://localhost:8000/v1 python -m baselines rerank --release DIR --run RUN --out RUN2 --top-k 20 \\
    --kind listwise --model NAME
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.core.passages import open_passages
from baselines.core.run_manifest import describe_search, record, tag_of, write_manifest
from baselines.core.settings import DEVICE, ModelOptions, ModelSettings, add_model_settings, add_options
from baselines.measure.qrels import add_set, read_queries
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file, real_path, sha256_of
from builders.core.folders import key_of, work_beside
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, read_run, write_run

KINDS = ("cross", "llm", "listwise", "dense", "static", "sparse", "multi-vector")
_TAIL = 1e-6  # difference between the scores of passages behind --top-k; visible in 32 bits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release", "--split", "--out", "--top-k")
    add_set(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="run to re-rank")
    parser.add_argument("--model", required=True, metavar="M", help="hub name, folder, or name at the endpoint")
    parser.add_argument("--kind", choices=KINDS, help="kind of model (default: detected from the model's files)")
    parser.add_argument(
        "--parallel", type=whole_number(1), default=4, metavar="N", help="simultaneous listwise requests (default: 4)"
    )
    add_model_settings(parser, "--prompt")
    add_options(parser, "--batch-tokens", "--tokenizers", "--backend", *DEVICE)


def run(args: argparse.Namespace) -> None:
    if args.kind != "listwise":  # a model behind an endpoint may have any name
        check_models(args.model)
    check_file(args.out)
    rescored(args, open_release(args.release))


def rescored(args: argparse.Namespace, release: Release) -> tuple[dict[str, Any], str]:
    """Re-rank ``args.run``, and write ``args.out`` and its manifest. Return the manifest and the cost as text."""
    if real_path(args.run) == real_path(args.out):
        raise InputError("is both the run to re-rank and --out; expected different files", path=args.out)
    from baselines.retrieve import devices, families, models, rerankers, vector_index

    configs = SETS[args.set]
    texts, rankings = dict(read_queries(release, args.split, configs.queries)), read_run(args.run).rankings
    if strange := next((query for query in rankings if query not in texts), None):
        raise InputError(f"has a query {strange!r} that {configs.queries}/{args.split} lacks", path=args.run)
    ranked = {query: list(dict.fromkeys(ids)) for query, ids in rankings.items()}
    groups = [(texts[query], ids[: args.top_k]) for query, ids in ranked.items()]
    open_passages(release, configs.corpus).expect((corpus for ids in ranked.values() for corpus in ids), args.run)
    settings = ModelSettings(args.model, revision=args.revision, trust_remote_code=args.trust_remote_code)
    model_options = ModelOptions(**{name: vars(args)[name] for name in ModelOptions.__dataclass_fields__})
    kind = args.kind or models.kind_of_scorer(settings)
    first = {"reranked": {"file": args.run.name, "sha256": sha256_of(args.run)}}
    if kind in vector_index.RETRIEVERS:
        model_search = families.prepare_search(
            model=args.model,
            options=model_options,
            work=devices.work_of(args.device, args.dtype, args.batch_tokens, args.tokenizers, args.backend),
            release=release,
            set_name=args.set,
            split=args.split,
            top_k=args.top_k,
            index=getattr(args, "index", None),
        )
        found, retriever, kept = model_search.record, model_search.retriever, model_search.index_folder
        found |= {**first, "passages_encoded": len({corpus for _, ids in groups for corpus in ids})}
        tag, options = tag_of(found), []
    else:
        for name in ("family", "index"):
            if given := getattr(args, name, None):  # `rerank` has no --index
                raise InputError(f"--{name} {given}: a model of kind {kind} has no {name}", path=args.model)
        if kind == "listwise":
            work = rerankers.endpoint_work(args.parallel)
        else:
            work = devices.work_of(args.device, args.dtype, args.batch_tokens, args.tokenizers, args.backend)
        job = rerankers.pair_job(
            model=args.model, options=model_options, work=work, release=release, corpus=configs.corpus
        )
        tag = kind
        asked = {
            **describe_search(release, kind=kind, set_name=args.set, split=args.split, top_k=args.top_k),
            **first,
            "pairs_scored": sum(len(ids) for _, ids in groups),
        }
        found = record(job.reranker.about(), asked)
        options = [args.top_k, work.dtype, args.max_length, work.batch_tokens, rerankers.WINDOW]
    about = {  # saved scores are reused if all these values are equal
        "run": first["reranked"]["sha256"],
        "model": found["model"],
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, args.split),
        "options": options,
    }
    with work_beside(args.out, key_of(about)) as folder:
        if kind in vector_index.RETRIEVERS:
            scores, new = retriever.scores(release, configs.corpus, kept, groups)
            cost = f"{found['passages_encoded']:,} passages encoded, {new:,} of them now"
        else:
            window = rerankers.ASKED if kind == "listwise" else None
            scores = rerankers.score_windows(job, groups, folder, "rerank", window)
            cost = f"{found['pairs_scored']:,} pairs scored"
        both = zip(ranked.items(), scores, strict=True)
        lines = write_run(args.out, ((query, reordered(ids, own)) for (query, ids), own in both), tag=tag)
    manifest = write_manifest(args.out, found, tag, len(groups), lines)
    precision = found["model"].get("computed_in", "unknown (endpoint)")
    log.info("%s: %d lines for %d queries; %s; precision: %s", args.out, lines, len(groups), cost, precision)
    return manifest, cost


def reordered(ids: Sequence[str], scores: Sequence[float]) -> list[Hit]:
    """Return a query's passages with new scores. ``scores`` has the new scores of the first passages in ``ids``.

    Passages without a score, or with the score -inf, follow in their old order. Their scores are below all others.
    """
    hits = [(corpus, score) for corpus, score in zip(ids, scores, strict=False) if score > -math.inf]
    new, low = {corpus for corpus, _ in hits}, min((score for _, score in hits), default=0.0)
    rest = enumerate((corpus for corpus in ids if corpus not in new), 1)
    return [*hits, *((corpus, float(f"{low - n * _TAIL * max(1.0, abs(low)):.9g}")) for n, corpus in rest)]
