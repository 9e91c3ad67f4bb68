"""Re-rank a run by a cross-encoder or a language model.

The queries stay in the order of the given run. The best 50 passages of each query, pairs of at most 384 tokens if the
model was trained so (Sections 3.1, A.2). Scores are logits: the order of ``CrossEncoder.predict``, but without the ties
of a sigmoid that has reached 1. Pairs are scored in windows of queries, sorted by length; finished windows are kept, so
that the command started again after an interruption goes on where it was. One process a GPU.

--kind llm: a language model is asked whether a passage answers the query; the score is its logit of yes less that of
no. --kind listwise: --model of the endpoint in OPENAI_BASE_URL (any that speaks OpenAI's chat API; OPENAI_API_KEY where
it needs a key) is shown 20 passages at a time and says their order; the scores are places from the end. Queries and
passages are sent there. Without --kind, a model's own files say whether it is a cross-encoder or a language model.

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
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="the run whose passages are re-ranked")
    parser.add_argument("--model", required=True, metavar="M", help="hub name or folder, or as the endpoint calls it")
    parser.add_argument("--kind", choices=RERANKERS, help="of the model (default: as its files say)")
    parser.add_argument("--prompt", metavar="TEXT", help="a language model's instruction; else put before each query")
    parser.add_argument(
        "--parallel", type=whole_number(1), default=4, metavar="N", help="listwise: questions at a time (4)"
    )
    add_options(parser, *PAIRS, *DEVICE)


def run(args: argparse.Namespace) -> None:
    if real_path(args.run) == real_path(args.out):
        raise InputError("is both --run and --out; expected another file for the re-ranked run", path=args.out)
    check_file(args.out)
    if args.kind != "listwise":  # a model behind an endpoint has any name
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
    about = {  # all that must be equal for finished windows to be kept
        "run": first,
        "model": model,
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, args.split),
        "options": [
            args.top_k,
            work.dtype,
            args.max_length,
            work.batch_tokens,
            rerankers.WINDOW,
        ],
    }
    with work_beside(args.out, key_of(about)) as folder:
        window = rerankers.ASKED if reranker.kind == "listwise" else None
        scores = rerankers.score_windows(job, list(groups.values()), folder, "rerank", window)
        hits = (
            (query, zip(ids, own, strict=True)) for (query, (_, ids)), own in zip(groups.items(), scores, strict=True)
        )
        lines = write_run(args.out, hits, tag=reranker.kind)
    given_run = {"file": args.run.name, "sha256": first}
    found = record(model, {**asked_of(args, release, reranker.kind), "reranked": given_run})
    write_manifest(args.out, found, reranker.kind, len(groups), lines)
    precision = model.get("computed_in", "the endpoint's own")
    log.info("%s: %d lines for %d queries; precision: %s", args.out, lines, len(groups), precision)
