"""The judgments that a verb measures runs with, as its options choose them: a split of a release, or a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines.measure.groups import Groups, groups_of
from baselines.measure.qrels import Qrels, read_queries, read_reference
from baselines.measure.run_origin import warn_of_origins
from builders.core.errors import InputError, log
from builders.core.read_files import begins_as_parquet
from builders.store.layout import SETS
from builders.store.logged_runs import read_search_log
from builders.store.original_runs import read_release_run
from builders.store.reader import Release, open_release
from builders.store.runs import Run
from builders.store.search_log import is_search_log


@dataclass(frozen=True)
class ReferenceSource:
    """The options of `evaluate`, `compare` and `errors` that choose the judgments.

    Attributes:
        release: the release with the judgments, None if ``qrels_file`` has the judgments.
        qrels_file: a file with the judgments, None if ``release`` has the judgments.
        split: the split of the release.
        set_name: the set of the release.
        query_config: a config to use instead of the set's queries (None: the set's).
        qrels_config: a config to use instead of the set's judgments (None: the set's).
    """

    release: Release | None
    qrels_file: Path | None
    split: str
    set_name: str
    query_config: str | None
    qrels_config: str | None

    @classmethod
    def of_options(
        cls,
        *,
        release: Release | Path | None,
        qrels: Path | None,
        split: str,
        set_name: str,
        queries: str | None,
        qrels_config: str | None,
    ) -> "ReferenceSource":
        """Open the release, and return the source. The parameters are the options of the verbs."""
        opened_release = None if release is None else open_release(release)
        return cls(opened_release, qrels, split, set_name, queries, qrels_config)

    def paths(self) -> list[Path]:
        """Return the release's folder, or the file of judgments."""
        if self.release is not None:
            return [self.release.path]
        return [] if self.qrels_file is None else [self.qrels_file]

    def read(self) -> Qrels:
        """Read the judgments."""
        return read_reference(
            release=self.release,
            qrels=self.qrels_file,
            split=self.split,
            set_name=self.set_name,
            queries=self.query_config,
            qrels_config=self.qrels_config,
        )

    def read_run(self, run: Run | Path) -> Run:
        """Read a run with the ids of the release, or the run in a log of searches (:mod:`builders.store.logged_runs`).

        Raises :class:`InputError` for a log without a release, whose questions have the texts of the log.
        """
        if isinstance(run, Run) or begins_as_parquet(run) or not is_search_log(run):
            return read_release_run(run, self.release)
        if self.release is None:
            raise InputError("is a log of searches, which has texts and no ids of questions; add --release", path=run)
        query_config = self.query_config or SETS[self.set_name].queries
        # The questions of other splits are read, too, so that the log's searches for them are reported as such.
        question_splits = {self.split: read_queries(self.release, self.split, query_config)}
        for config, split in self.release.splits():
            if config == query_config and split != self.split:
                question_splits[split] = read_queries(self.release, split, config)
        return read_search_log(run, question_splits, self.split)

    def warn_of_origins(self, runs: Sequence[Run], qrels: Qrels) -> None:
        """Warn about runs of another release, set or split (:func:`baselines.measure.run_origin.warn_of_origins`)."""
        warn_of_origins(
            runs,
            qrels,
            self.release,
            set_name=self.set_name,
            split=self.split,
            qrels_config=self.qrels_config or "",
        )

    def groups(self, question_property: str, query_ids: Sequence[str]) -> Groups:
        """Return the groups of queries by a property (:func:`baselines.measure.groups.groups_of`)."""
        return groups_of(
            by=question_property,
            queries=query_ids,
            release=self.release,
            split=self.split,
            set_name=self.set_name,
            query_config=self.query_config,
        )

    def question_types(self, query_ids: Sequence[str]) -> Groups:
        """Return the groups of queries by DuReader's question type. Empty, with a log line, without these types."""
        # Only DuReader's own questions have these types. Their sets search the main corpus.
        is_known = self.release is not None and ("answers", self.split) in self.release.splits()
        if is_known and SETS[self.set_name].corpus == SETS["main"].corpus:
            return self.groups("question_type", query_ids)
        log.info("the judgments have no question types, so the picture shows all questions together")
        return {}
