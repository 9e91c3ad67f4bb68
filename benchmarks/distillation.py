"""Compare distillation and denoised negatives with the training that they change: the figures of docs/distil.md.

Three dual-encoders start from the same weights and take the same number of steps with the same rows and seed:

- plain: `de-bm25-neg`, on negatives that `mine` draws from BM25's run
- distilled: `de-distil` on the same negatives, with BM25's scores as teacher
- denoised: `de-bm25-neg`, on negatives that a cross-encoder kept (`mine --denoise`)

A cross-encoder is trained on the plain negatives for the denoising. The starting weights, the three models and BM25
then search the dev split, and `baselines compare` tests all pairs. --out gets PREFIX.json and PREFIX.md.

A started command resumes. --small trains a tiny random model on the embedded sample for two steps, which only shows
that the steps work.

Examples:

  python benchmarks/distillation.py --release build/cmrc --start intfloat/multilingual-e5-small --dtype bf16 \\
    --work build/distillation --out build/distillation/figures
  python benchmarks/distillation.py --small --work build/small --out build/small/figures
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, machine, parser_of, write_json

from baselines.bm25.search_bm25 import search_bm25
from baselines.measure.compare import compare_runs
from baselines.retrieve.any_model import run_model
from baselines.train.mine import mine_negatives
from baselines.train.train import train_model

SEED = 0
PASSAGE_TOKENS = 64  # few, so that three trainings fit into half an hour on two cores
QUERY_TOKENS = 32
PAIR_TOKENS = QUERY_TOKENS + PASSAGE_TOKENS  # of a query and a passage, for the cross-encoder
NEGATIVES = 3  # for each positive; a row has four passages
RUN_DEPTH = 200  # passages of BM25's run: `mine --denoise` tries these
# BM25's scores differ by tens. Times 0.2, a teacher's distribution has more than one passage (docs/distil.md).
TEACHER_SCALE = 0.2
MEASURES = ("MRR@10", "recall@1")


@dataclass(frozen=True)
class Study:
    """The input and the length of the trainings.

    Attributes:
        release: release with train and dev questions.
        start: starting weights of all models: a folder or a hub name.
        work: folder of runs, negatives and checkpoints.
        steps: steps of each dual-encoder.
        cross_encoder_steps: steps of the cross-encoder that denoises.
        dtype: precision in which models score and search, as of `run --dtype`. Training has fp32.
    """

    release: Path
    start: str
    work: Path
    steps: int
    cross_encoder_steps: int
    dtype: str


def dual_encoder_values(study: Study) -> list[str]:
    """Return the values of `train --set` for a dual-encoder."""
    return [
        f"model.start={study.start}",
        "model.pooling=",  # as in the starting weights
        "model.similarity=",
        f"data.query_length={QUERY_TOKENS}",
        f"data.passage_length={PASSAGE_TOKENS}",
        f"data.negatives_per_positive={NEGATIVES}",
        "data.rows=all-negatives",
        "train.batch=8",
        "train.mini_batch=8",
        f"train.max_steps={study.steps}",
        "train.learning_rate=2e-5",
        "train.scale=50",  # cosines are between -1 and 1
        "train.evaluations=0",
        "train.saves=2",
        f"train.seed={SEED}",
    ]


def cross_encoder_values(study: Study) -> list[str]:
    """Return the values of `train --set` for the cross-encoder."""
    return [
        f"model.start={study.start}",
        f"data.passage_length={PAIR_TOKENS}",
        "data.negatives_per_positive=1",
        "train.batch=16",
        "train.mini_batch=16",
        f"train.max_steps={study.cross_encoder_steps}",
        "train.learning_rate=1e-4",  # the classifier starts from random weights
        "train.warmup=0.1",
        "train.evaluations=0",
        "train.saves=2",
        f"train.seed={SEED}",
    ]


def train_and_search(study: Study) -> tuple[dict[str, Path], dict[str, Any]]:
    """Train the models, and search the dev questions. Return the runs by name, and the costs and counts of the steps.

    A step whose output is complete from an earlier call takes a moment.
    """
    seconds_by_step: dict[str, float] = {}
    release, work = study.release, study.work
    train_run = work / "bm25.train.run.gz"
    negatives = work / "plain.negatives.jsonl"
    denoised_negatives = work / "denoised.negatives.jsonl"
    cross_encoder = work / "cross-encoder"
    values = dual_encoder_values(study)

    def step(title: str, function: Callable[..., Any], **options: Any) -> Any:
        """Call the function of a verb with the release, and record its seconds. Return the function's result."""
        print(title, file=sys.stderr, flush=True)
        start_time = time.perf_counter()
        result = function(release=release, **options)
        seconds_by_step[title] = round(time.perf_counter() - start_time, 1)
        return result

    def train(title: str, recipe: str, **options: Any) -> None:
        """Train a model from the starting weights."""
        step(f"train {title}", train_model, recipe=recipe, start=study.start, device="cpu", **options)

    step("bm25 train", search_bm25, split="train", top_k=RUN_DEPTH, out=train_run)
    step("mine", mine_negatives, run=train_run, negatives=NEGATIVES, seed=SEED, out=negatives)
    train("plain", "de-bm25-neg", negatives=[negatives], set=values, out=work / "plain")
    train(
        "distilled",
        "de-distil",
        negatives=[negatives],
        teacher=train_run,
        set=[*values, f"distil.teacher_scale={TEACHER_SCALE}"],
        out=work / "distilled",
    )
    train("cross-encoder", "ce-bm25-neg", negatives=[negatives], set=cross_encoder_values(study), out=cross_encoder)
    denoising = step(
        "mine --denoise",
        mine_negatives,
        run=train_run,
        negatives=NEGATIVES,
        seed=SEED,
        cross_encoder=str(cross_encoder),
        denoise=True,
        max_length=PAIR_TOKENS,
        device="cpu",
        dtype=study.dtype,
        out=denoised_negatives,
    )
    train("denoised", "de-bm25-neg", negatives=[denoised_negatives], set=values, out=work / "denoised")

    runs = {"BM25": work / "bm25.dev.run.gz"}
    step("bm25 dev", search_bm25, split="dev", out=runs["BM25"])
    models = {"start": study.start, **{name: str(work / name) for name in ("plain", "distilled", "denoised")}}
    for name, model in models.items():
        runs[name] = work / f"{name}.dev.run.gz"
        step(
            f"search {name}",
            run_model,
            model=model,
            max_length=PASSAGE_TOKENS,
            device="cpu",
            dtype=study.dtype,
            out=runs[name],
        )
    return runs, {"seconds": seconds_by_step, "denoising": denoising.counts()}


def small_study(work: Path) -> Study:
    """Return a study of two steps on the embedded sample, with a tiny random model."""
    from tiny_models import write_dual

    from builders.release.build_release import build_release

    release, start = work / "sample", work / "start"
    build_release([ROOT / "builders" / "sample"], out=release)
    if not start.exists():
        write_dual(start)
    return Study(release, str(start), work, steps=2, cross_encoder_steps=2, dtype="fp32")


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--release", type=Path, metavar="DIR", help="release with train and dev questions")
    parser.add_argument("--start", metavar="M", help="starting weights of all models: folder or hub name")
    parser.add_argument("--steps", type=int, default=40, help="steps of each dual-encoder (default: 40)")
    parser.add_argument(
        "--cross-encoder-steps", type=int, default=200, help="steps of the cross-encoder (default: 200)"
    )
    parser.add_argument(
        "--dtype",
        default="fp32",
        choices=["auto", "fp32", "fp16", "bf16"],
        help="precision of scoring and searching (default: fp32)",
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of all files")
    parser.add_argument("--out", type=Path, required=True, metavar="PREFIX", help="PREFIX.json and .md are written")
    parser.add_argument("--small", action="store_true", help="a tiny model on the embedded sample")
    return parser.parse_args(words)


def main() -> None:
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.small:
        study = small_study(options.work)
    elif options.release and options.start:
        study = Study(
            release=options.release,
            start=options.start,
            work=options.work,
            steps=options.steps,
            cross_encoder_steps=options.cross_encoder_steps,
            dtype=options.dtype,
        )
    else:
        sys.exit("expected --release DIR and --start M, or --small")
    facts = machine("torch", "sentence-transformers")
    runs, figures = train_and_search(study)
    report = compare_runs(
        [*runs.values()], name=[*runs], release=study.release, split="dev", measure=MEASURES, changed=0, seed=SEED
    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_json(options.out.with_suffix(".json"), facts | {"date": date, **figures, "comparison": report.value})
    options.out.with_suffix(".md").write_text(report.to_markdown(), encoding="utf-8")
    print(report.to_markdown())


if __name__ == "__main__":
    main()
