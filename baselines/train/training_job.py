"""A training with its options, validated before any large library is loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.core.checkpoint import TRAINING, left_out
from baselines.retrieve.hub_models import model_commit, name_of_folder
from baselines.retrieve.model_files import model_hashes
from baselines.train.recipe import CREATED_STARTS, FROM_RECIPE, FROM_RELEASE, PAIRS, WORDS, Recipe
from baselines.train.recipe_files import recipe_names
from builders.core.cache import cached_sha256
from builders.core.errors import InputError
from builders.core.finished_outputs import UNKNOWN, VerbCall, VerbInput
from builders.core.folders import check_output
from builders.store.layout import REMOVED, SETS, base_set, set_of
from builders.store.reader import Release, open_release
from builders.store.runs import Run, scored_depth

if TYPE_CHECKING:
    from baselines.retrieve.question_pairs import PairFile

_REPORT_SECONDS = 5.0  # in which the first process reports an error
# Raise this number if the same call gives another checkpoint than before.
RESULT_VERSION = 3


@contextlib.contextmanager
def report_errors_once() -> Iterator[None]:
    """Let the first process of torchrun report an :class:`InputError` that all processes raise."""
    try:
        yield
    except InputError:
        if os.environ.get("RANK", "0") != "0":
            # torchrun ends this process during the wait, so the error appears only once.
            time.sleep(_REPORT_SECONDS)
        raise


class TrainingJob:
    """A training with its options. Raises :class:`InputError` if an option is missing or does not fit the recipe.

    Attributes:
        recipe: all settings of the training.
        release: None if the recipe learns from ``pairs``.
        out: the checkpoint directory to write.
        pairs, dev_pairs: files of labelled pairs of questions for training and evaluation. Empty with a release.
        negatives: files of hard negatives. Empty if the recipe needs no file.
        machine_labels: files of a machine's labels, which add positives and questions.
        teacher: the run whose scores a distillation learns, or None.
        dev_run: a run of the dev queries that a cross-encoder re-ranks during training, or None.
        start: ``scratch``, ``words``, a directory, or a name on the hub.
        device: auto, cpu or cuda.
        again: True to replace saved states and a finished training.
        cache: folder of unpacked collections. None: the user's cache.
        rank, world: the number of this process and of all processes, from torchrun. Without torchrun: 0 and 1.
        first: True in the process that evaluates and writes.
        call: everything that decides whether ``out`` is the checkpoint of this training.
        commit: the commit of a starting checkpoint on the hub, else None. The first access asks the hub.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        release: Release | Path | None,
        out: Path,
        pairs: Sequence[str],
        dev_pairs: Sequence[str],
        negatives: Sequence[Path],
        machine_labels: Sequence[Path] = (),
        teacher: Path | None = None,
        dev_run: Path | None,
        start: str | None,
        device: str,
        again: bool,
        cache: Path | None,
    ) -> None:
        self.recipe = recipe
        self.start = start or recipe.model.start
        self.dev_run = dev_run
        self.machine_labels = list(machine_labels)
        self.teacher = teacher
        self.device = device
        self.again = again
        self.cache = cache
        # Check the options, before any file is read.
        self._check_options(
            has_release=release is not None,
            has_pairs=bool(pairs),
            has_dev_pairs=bool(dev_pairs),
            has_negatives=bool(negatives),
        )
        recipe.train.loggers()  # raises an error for a logger that is not installed

        # Find the input files.
        self.release = None
        if release is not None:
            self.release = open_release(release)
        self.pairs: list[PairFile] = []
        self.dev_pairs: list[PairFile] = []
        if pairs:
            from baselines.retrieve.question_pairs import pair_file

            self.pairs = [pair_file(text) for text in pairs]
            self.dev_pairs = [pair_file(text) for text in dev_pairs]
        self.negatives: list[Path] = []
        if recipe.negatives:
            self.negatives = list(negatives)
            # The recipe may name a file of negatives, if no option does.
            if not self.negatives and recipe.data.negatives not in ("", FROM_RELEASE):
                self.negatives = [Path(recipe.data.negatives)]

        # Check the output's path, and find the starting checkpoint.
        self.out = check_output(out, "a checkpoint", TRAINING)
        if self.start.startswith(FROM_RECIPE):
            self.start = str(self._checkpoint_of_recipe(beside=out))
        # If the recipe leaves out the tuning questions, its starting checkpoint must have left them out, too.
        left_out(Path(self.start), need=bool(recipe.data.leave_out))
        input_files = list(self.negatives)
        input_files += self.machine_labels
        if self.teacher:
            input_files.append(self.teacher)
        if self.dev_run:
            input_files.append(self.dev_run)
        for input_file in input_files:
            # A pipe is refused, because SHA-256 is computed in a second pass.
            if not input_file.is_file():
                raise InputError("no such file", path=input_file)

        # torchrun sets these variables.
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.first = self.rank == 0

    def _check_options(self, *, has_release: bool, has_pairs: bool, has_dev_pairs: bool, has_negatives: bool) -> None:
        """Raise :class:`InputError` if the options do not fit the recipe's model and data."""
        recipe = self.recipe
        recipe_name = f"the recipe {recipe.name}"
        if self.teacher and not recipe.distil:
            raise InputError(f"--teacher needs a recipe with the section [distil], which {recipe_name} lacks")
        if recipe.data.source == PAIRS:
            if not has_pairs or has_release or has_negatives or self.dev_run:
                remedy = "give --pairs FILE..., and no --release, --negatives or --dev-run"
                raise InputError(f"{recipe_name} learns from labelled pairs of questions; {remedy}")
            if self.start in CREATED_STARTS:
                raise InputError(f"start {self.start} needs a release; train mlm-scratch and use its checkpoint")
        elif has_pairs or has_dev_pairs or not has_release:
            raise InputError(f"{recipe_name} learns from a release; give --release DIR, and no --pairs or --dev-pairs")
        elif recipe.distil and not self.teacher:
            problem = "learns a teacher's scores; give --teacher RUN, a run of the training questions"
            raise InputError(f"{recipe_name} {problem}, for example from `python -m baselines rerank`")
        elif recipe.negatives and not (has_negatives or recipe.data.negatives or recipe.distil):
            raise InputError(
                f"{recipe_name} needs {recipe.negatives} hard negatives per positive; give --negatives F from "
                "`python -m baselines mine`, use the official negatives with --set data.negatives=release, or train "
                "without negatives with --set data.negatives_per_positive=0"
            )
        if self.machine_labels and not recipe.negatives:
            raise InputError(f"--machine-labels needs a recipe that reads negatives; {recipe_name} reads none")
        if self.dev_run and recipe.model.kind != "cross":
            raise InputError(f"--dev-run needs a cross-encoder; {recipe_name} trains another kind of model")
        if self.start == WORDS and recipe.model.kind != "dual":
            raise InputError(f'model.start = "words" needs a dual-encoder; {recipe_name} trains another kind of model')

    def _checkpoint_of_recipe(self, beside: Path) -> Path:
        """Return the checkpoint of the recipe that ``recipe:NAME`` names, which is expected beside the output."""
        folder = beside.parent / self.start.removeprefix(FROM_RECIPE)
        if not folder.is_dir():
            needed_by = f"{folder.name}, which {self.recipe.name} starts from"
            raise InputError(f"no checkpoint of {needed_by}; train it or give --start", path=folder)
        return folder

    @functools.cached_property
    def result_inputs(self) -> dict[str, Any]:
        """Everything the training depends on, without local paths and without the commit of a hub model.

        A training can resume only if its dependencies are unchanged. ``dev_run`` is not included, because no weight
        depends on it. Raises :class:`InputError` if the release lacks the recipe's split.
        """
        # One hash, or a list of several: checkpoints of earlier versions have this form.
        hashes = [cached_sha256(path) for path in self.negatives]
        negatives_sha256: str | list[str] | None = None
        if len(hashes) == 1:
            negatives_sha256 = hashes[0]
        elif hashes:
            negatives_sha256 = hashes
        # All files that the libraries read: another activation or tokenizer gives another model, too.
        start_name = self.start
        start_files = None
        start_folder = Path(self.start)
        if start_folder.is_dir():
            start_name = name_of_folder(start_folder)
            start_files = model_hashes(start_folder)
        inputs: dict[str, Any] = {
            "recipe": self.recipe.resolved(),
            "start": start_name,
            "start_files": start_files,
            "data": self._data_hashes(),
            "negatives_sha256": negatives_sha256,
        }
        # Only trainings with these files name them, so that other trainings stay the same as before.
        if self.machine_labels:
            inputs["machine_labels_sha256"] = [cached_sha256(path) for path in self.machine_labels]
        if self.teacher:
            inputs["teacher_sha256"] = cached_sha256(self.teacher)
            depth = scored_depth(Run(self.teacher))
            if depth is not None:
                inputs["teacher_depth"] = depth
        # Earlier versions ignored the labels' negatives here, so their trainings neither resume nor count as finished.
        if self.machine_labels and self.teacher and not self.negatives:
            inputs["negatives_from"] = "machine labels"
        return inputs

    @functools.cached_property
    def call(self) -> VerbCall:
        """Everything that decides if ``out`` is the checkpoint of this training.

        Not recorded are the number of processes, which changes no weight, the cache, and the files of ``dev_run``,
        which only measure. A training may resume on another device, but a finished checkpoint of another device has
        other weights.
        """
        about = self.result_inputs
        options = {"recipe": about["recipe"], "start": about["start"], "device": self.device}
        for name in ("negatives_from", "teacher_depth"):
            if name in about:
                options[name] = about[name]
        data_label = "the pairs of questions"
        if self.release is not None:
            data_label = f"the release {self.release.path}"
        inputs = {"data": VerbInput(data_label, about["data"])}
        if self.negatives:
            # Several files are numbered. A single file has no number, as in earlier versions.
            hashes = {f"{number}": cached_sha256(path) for number, path in enumerate(self.negatives, 1)}
            if len(hashes) == 1:
                hashes = {"": hashes["1"]}
            paths = ", ".join(str(path) for path in self.negatives)
            inputs["negatives"] = VerbInput(f"the negatives {paths}", hashes)
        if self.machine_labels:
            label_hashes = {f"{number}": cached_sha256(path) for number, path in enumerate(self.machine_labels, 1)}
            inputs["machine_labels"] = VerbInput("the machine's labels", label_hashes)
        if self.teacher:
            inputs["teacher"] = VerbInput(f"the run {self.teacher}", {"": cached_sha256(self.teacher)})
        if about["start_files"] is not None:
            inputs["start"] = VerbInput(f"the model {self.start}", about["start_files"])
        elif self.start not in CREATED_STARTS:
            inputs["start"] = self._start_on_hub()
        return VerbCall("train", RESULT_VERSION, options, inputs)

    def _start_on_hub(self) -> VerbInput:
        """Describe a starting checkpoint on the hub. If the hub fails, the commit is unknown."""
        try:
            return VerbInput(f"the model {self.start}", {"commit": self.commit or UNKNOWN})
        except InputError as error:
            return VerbInput(f"the model {self.start}", {"commit": UNKNOWN}, error)

    def _data_hashes(self) -> dict[str, str]:
        """Return a hash of each part of the data by its name.

        A part is a split of the release that the model learns from, or a file of pairs for training or evaluation.
        """
        hashes = {}
        if self.release is not None:
            for config, split in self._used_splits():
                hashes[f"{config}/{split}"] = self.release.fingerprint(config, split)
        for use, pair_files in (("pairs", self.pairs), ("dev pairs", self.dev_pairs)):
            for number, pair_file in enumerate(pair_files, start=1):
                file_name = pair_file.path.name
                if pair_file.columns:
                    file_name += f":{','.join(pair_file.columns)}"
                hashes[f"{use} {number}: {file_name}"] = cached_sha256(pair_file.path)
        return hashes

    def _used_splits(self) -> list[tuple[str, str]]:
        """Return the (config, split) pairs of the release that the model learns from, without the dev sample's."""
        data = self.recipe.data
        configs = set_of(data.set)
        # A masked language model only learns from passages.
        splits = [(configs.corpus, "corpus")]
        if self.recipe.model.kind != "mlm":
            splits += [(configs.queries, data.split), (configs.qrels, data.split)]
            if data.negatives == FROM_RELEASE and data.negatives_per_positive and not self.negatives:
                splits.append((SETS[base_set(data.set)].joined[data.split], data.split))
            if data.similar:
                splits.append((REMOVED, data.split))
        return splits

    @functools.cached_property
    def commit(self) -> str | None:
        """The commit of a starting checkpoint on the hub, else None. Raises :class:`InputError` if the hub fails."""
        if self.start in CREATED_STARTS:
            return None
        remedy = "--start DIR"
        scratch = f"{self.recipe.name}-scratch"
        if scratch in recipe_names():
            remedy += f", or the recipe {scratch},"
        return model_commit(self.start, self.recipe.model.revision, f"{remedy} needs no hub")
