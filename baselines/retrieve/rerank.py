"""Re-rank a run by a cross-encoder or a language model.

The best 50 passages of each query are re-ranked (Section 3.1). Pairs are cut to the model's length, which is 384 tokens
in the paper (Section A.2). The output has the queries in the order of the run. Scores are logits, because the sigmoids
of ``CrossEncoder.predict`` tie at 1. Finished scores are retained, so an interrupted command resumes when it is started
again. Each GPU has one process.

--kind llm asks a language model if a passage answers the query. The score is the logit of yes minus the logit of no.
--kind listwise asks a model behind an endpoint to sort 20 passages at a time. OPENAI_BASE_URL is the address of the
endpoint, which must have OpenAI's chat API. OPENAI_API_KEY is its key, if needed. Queries and passages are sent to the
endpoint. Of n passages, the first scores n and the last scores 1. The default kind is detected from the model's files.

RUN2.manifest.json records the model, its precision, and the SHA-256 of both runs.

Example:

  python -m baselines rerank --release build/sample --split dev --run build/runs/bm25.dev.run.gz \\
    --model build/models/ce-bm25-neg --out build/runs/ce.dev.run.gz
  OPENAI_BASE_URL=http://localhost:8000/v1 python -m baselines rerank --release DIR --run RUN --out RUN2 --top-k 20 \\
    --kind listwise --model NAME
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_set, read_queries
from baselines.retrieve.passages import open_passages
from baselines.retrieve.run_manifest import asked_of, record, write_manifest
from baselines.retrieve.settings import DEVICE, PAIRS, add_options
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file, real_path, sha256_of
from builders.core.folders import key_of, work_beside
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

RERANKERS = ("cross", "llm", "listwise")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release", "--split", "--out", "--top-k", "--trust-remote-code")
    add_set(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="run to re-rank")
    parser.add_argument("--model", required=True, metavar="M", help="hub name, folder, or name at the endpoint")
    parser.add_argument("--kind", choices=RERANKERS, help="kind of model (default: cross or llm, by its files)")
    parser.add_argument("--prompt", metavar="TEXT", help="instruction for a language model, else a query prefix")
    parser.add_argument(
        "--parallel", type=whole_number(1), default=4, metavar="N", help="simultaneous listwise requests (default: 4)"
    )
    add_options(parser, *PAIRS, *DEVICE)


def run(args: argparse.Namespace) -> None:
    if real_path(args.run) == real_path(args.out):
        raise InputError("is both --run and --out; expected different files", path=args.out)
    check_file(args.out)
    if args.kind != "listwise":  # an endpoint may use any name for a model
        check_models(args.model)
    from baselines.retrieve import rerankers

    release, configs = open_release(args.release), SETS[args.set]
    texts, groups = dict(read_queries(release, args.split, configs.queries)), {}
    for query, ids in read_run(args.run).rankings.items():
        if query not in texts:
            raise InputError(f"has a query {query!r} that {configs.queries}/{args.split} lacks", path=args.run)
        groups[query] = texts[query], list(dict.fromkeys(ids))[: args.top_k]
    passages = open_passages(release, configs.corpus)
    passages.expect((corpus for _, ids in groups.values() for corpus in ids), args.run)
    job = rerankers.pair_job(args, args.model, release, configs.corpus)
    reranker, work = job.reranker, job.reranker.work
    model, first = reranker.about(), sha256_of(args.run)
    about = {  # finished windows are reused only if all of this is equal
        "run": first,
        "model": model,
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, args.split),
        "options": [args.top_k, work.dtype, args.max_length, work.batch_tokens, rerankers.WINDOW],
    }
    with work_beside(args.out, key_of(about)) as folder:
        window = rerankers.ASKED if reranker.kind == "listwise" else None
        scores = rerankers.score_windows(job, list(groups.values()), folder, "rerank", window)
        hits = (
            (query, zip(ids, own, strict=True)) for (query, (_, ids)), own in zip(groups.items(), scores, strict=True)
        )
        lines = write_run(args.out, hits, tag=reranker.kind)
    asked = {**asked_of(args, release, reranker.kind), "reranked": {"file": args.run.name, "sha256": first}}
    write_manifest(args.out, record(model, asked), reranker.kind, len(groups), lines)
    precision = model.get("computed_in", "unknown (endpoint)")
    log.info("%s: %d lines for %d queries; precision: %s", args.out, lines, len(groups), precision)
