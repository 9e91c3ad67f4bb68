"""The verb `train`: train a model from a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from baselines.train.recipe_files import recipe_names, recipe_summary
from builders.core.errors import UsageError
from builders.core.options import Again, Excludes, Flags, Help, Placeholder, Use
from builders.core.results import Report, Table
from builders.core.verbs import verb
from builders.store.release_options import ReleasePath, RunPath

if TYPE_CHECKING:
    from baselines.core.checkpoint import WrittenCheckpoint

RecipeName = Annotated[
    str, Use.POSITIONAL, Placeholder("RECIPE"), Help("a recipe's name (--list prints the names), or a .toml file")
]
PairFiles = Annotated[Sequence[str], Placeholder("FILE")]
# torchrun reads --start as an abbreviation of its own option --start-method, and does not pass the option on.
StartingModel = Annotated[str, Flags(("--start", "--start-from")), Placeholder("MODEL")]


@verb(resumes=True)
def train_model(
    recipe: Annotated[RecipeName, Excludes("list")] | None = None,
    *,
    release: ReleasePath | None = None,
    out: Annotated[Path, Placeholder("CKPT"), Excludes("list")] | None = None,
    pairs: PairFiles = (),
    dev_pairs: PairFiles = (),
    negatives: Annotated[Sequence[Path], Use.REPEATED, Placeholder("F")] = (),
    machine_labels: Annotated[Sequence[Path], Use.REPEATED, Placeholder("F")] = (),
    teacher: RunPath | None = None,
    dev_run: RunPath | None = None,
    start: StartingModel | None = None,
    set: Annotated[Sequence[str], Use.REPEATED, Placeholder("KEY=VALUE")] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    cache: Annotated[Path, Placeholder("DIR")] | None = None,
    again: Annotated[Again, Flags(("--again", "--no-resume"))] = False,
    list: bool = False,
) -> "WrittenCheckpoint | Report":
    """Train a model from a recipe (Section 3.1, Appendix A.2).

    The model is a dual-encoder, a cross-encoder, or a masked language model. RECIPE is a name
    (baselines/recipes/NAME.toml) or a path. Hard negatives come from `mine`. The checkpoint directory loads with plain
    SentenceTransformer(DIR) or CrossEncoder(DIR). It also contains recipe.json, training.json and loss.png.

    If a recipe starts from another recipe's checkpoint, that checkpoint is expected beside --out. --start names another
    starting checkpoint. Several processes with cross-batch negatives: torchrun --nproc-per-node N -m baselines train
    ...

    The states of a running training are saved in CKPT.training. After a kill, the same command resumes from the last
    state. On the same CPU, a resumed training gives the same bits as an uninterrupted training. On a GPU, the bits may
    differ.

    --set data.set=restrain-14K-interpolation trains only on the sampled questions of this config, which `builders add`
    makes. Negatives that `mine` sampled for all training questions can be used unchanged.

    A recipe with the section [distil] learns the scores of --teacher, for example a run that `rerank` wrote.

    question-matching trains on labelled pairs of questions instead of a release (Section 2.3). A file of pairs is a
    table (commas or tabs) or JSON lines, gzipped or not. Its columns are text1, text2 and label, or have the names of
    LCQMC, BQ or AFQMC. If a table has no header, name its columns: FILE:id,text1,text2,label. The evaluation uses
    --dev-pairs, or a held-out part of --pairs. AUC and accuracy (at the paper's threshold of 0.5) are printed and saved
    in training.json.

    Args:
        release: release directory (required without --pairs)
        out: checkpoint directory to write (required without --list)
        pairs: labelled pairs of questions (instead of --release)
        dev_pairs: pairs to evaluate on (default: a part of --pairs)
        negatives: hard negatives of `mine` (repeatable)
        machine_labels: positives and questions that `mine` labelled by a cross-encoder (repeatable)
        teacher: run of the training queries whose scores a recipe with [distil] learns
        dev_run: run of the dev queries, re-ranked in a cross-encoder's training
        start: starting checkpoint: a directory or hub name (default: the recipe's; with torchrun, use --start-from)
        set: override a recipe's value, for example train.batch=64 (repeatable)
        device: device of the training (auto: cuda if available)
        cache: cache directory for unpacked collections (default: the user's cache)
        again: train anew, and replace earlier states and checkpoints
        list: print the project's recipes with a sentence each, and train nothing

    Returns:
        The checkpoint, or a report of the recipes with ``list``. The checkpoint's report has the number of steps and
        the last scores on the dev sample. In torchrun, only the first process has a report.

    Raises:
        InputError: an option does not fit the recipe, a file is damaged, or the weights became infinite.

    Examples:
        python -m baselines train --list
        python -m baselines train mlm-scratch --release DIR --out build/models/mlm-scratch
        python -m baselines train de-bm25-neg-scratch --release DIR --negatives bm25.train.negatives.jsonl.gz \\
          --out build/models/de-bm25-neg-scratch --set train.epochs=3
        python -m baselines train question-matching --pairs LCQMC/train.tsv BQ/train.tsv AFQMC/train.json \\
          --dev-pairs LCQMC/dev.tsv --out build/models/question-matching
    """
    if list:
        return report_recipes()
    if recipe is None or out is None:
        raise UsageError("expected RECIPE and --out CKPT; `train --list` prints the recipes")
    from baselines.core.checkpoint import WrittenCheckpoint
    from baselines.train.recipe import read_recipe
    from baselines.train.training import run_training, summarise_training
    from baselines.train.training_job import TrainingJob, report_errors_once
    from builders.store.runs import Run, expect_run_file

    with report_errors_once():
        job = TrainingJob(
            read_recipe(recipe, set),
            release=release,
            out=out,
            pairs=pairs,
            dev_pairs=dev_pairs,
            negatives=negatives,
            machine_labels=machine_labels,
            teacher=expect_run_file(teacher) if isinstance(teacher, Run) else teacher,
            dev_run=expect_run_file(dev_run) if isinstance(dev_run, Run) else dev_run,
            start=start,
            device=device,
            again=again,
            cache=cache,
        )
        training = run_training(job)
    return WrittenCheckpoint(out, summarise_training(out, training) if training else None)


def report_recipes() -> Report:
    """Return the names of the project's recipes with a sentence each."""
    summaries = {name: recipe_summary(name) for name in recipe_names()}
    name_width = max(len(name) for name in summaries)
    lines = [f"{name:<{name_width}}  {summary}" for name, summary in summaries.items()]
    table = Table(["recipe", "summary"], list(summaries.items()), text_columns=2)
    return Report(summaries, "\n".join(lines), [table])
