"""Commands that are killed at random moments end in the same bytes and leave no other files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SAMPLE
from fuzzing import CASES
from hub_server import Hub
from killing import Verb, killed_and_given_again
from official_archives import BOTH, write_tar
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from whole_release import make_whole

from builders.store.runs import write_run

REPO = "org/name"


class Repository(Hub):
    """A hub with one repository, as :mod:`killing` needs it."""

    def content(self) -> dict[str, bytes]:
        return self.repos["dataset", REPO].files

    def forget(self) -> None:
        self.create(REPO)


def write_models(folder: Path) -> None:
    """Write a small and a large release, three models, and a run of all passages."""
    from tiny_models import write_bert, write_cross, write_dual

    passage_texts = []
    for number in range(300):
        passage_texts += [f"{text} {number}" for text in TEXTS]
    make_release(folder / "release", rows_per_shard=1_000)
    make_release(folder / "large", tables(passage_texts), rows_per_shard=1_000)
    write_bert(folder / "bert")
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    hits = [(md5(text), 1 / rank) for rank, text in enumerate(passage_texts, start=1)]
    write_run(folder / "dev.run", [(md5(question), hits) for question in QUESTIONS["dev"]])


def write_archive(folder: Path) -> None:
    """Write an archive of the official files."""
    folder.mkdir()
    write_tar(folder / "all.tar.gz", BOTH, folder / "files")


_TRAIN_OPTIONS = (
    "--set train.batch=4 --set train.max_steps=40 --set train.saves=8 --set train.evaluations=1"
    " --set data.passage_length=24 --set data.query_length=12 --set data.negatives_per_positive=0"
)
_LARGE = "--release {given}/large --device cpu"
VERBS = {
    "release": Verb(
        f"builders release --raw {SAMPLE} --workers 2 --out {{here}}/out", lambda folder: folder.mkdir(), slow=False
    ),
    "official": Verb(
        "builders official --archive {given}/all.tar.gz --out {here}/out",
        write_archive,
        slow=False,
    ),
    "export": Verb("builders export --release {given} --format official --out {here}/out", make_whole, slow=False),
    "bm25": Verb("baselines bm25 --release {given} --split dev --out {here}/out", make_whole),
    "encode": Verb(
        f"baselines encode {_LARGE} --model {{given}}/dual --shard-rows 200 --out {{here}}/out", write_models
    ),
    "encode-int8": Verb(
        f"baselines encode {_LARGE} --model {{given}}/dual --store int8 --shard-rows 200 --out {{here}}/out",
        write_models,
    ),
    "rerank": Verb(
        f"baselines rerank {_LARGE} --model {{given}}/cross --run {{given}}/dev.run --top-k 1000 --out {{here}}/out",
        write_models,
    ),
    "match": Verb(
        "baselines match --release {given}/release --model {given}/cross --encoder {given}/dual --device cpu"
        " --out {here}/out",
        write_models,
    ),
    "train": Verb(
        "baselines train de-bm25-neg-scratch --release {given}/release --start {given}/bert --device cpu"
        f" --out {{here}}/out {_TRAIN_OPTIONS}",
        write_models,
    ),
    "publish": Verb("builders publish --release {given} --repo org/name", make_whole, server=lambda _: Repository()),
}


def verb_parameters() -> list[Any]:
    """Return the names of the verbs. A slow verb is skipped by ``make test``."""
    parameters = []
    for name, verb in VERBS.items():
        skip = pytest.mark.skipif(verb.slow and not CASES, reason="takes minutes: make test-slow")
        parameters.append(pytest.param(name, marks=skip))
    return parameters


@pytest.mark.parametrize("name", verb_parameters())
def test_kills_end_in_the_same_bytes(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    verb = VERBS[name]
    input_folder = tmp_path / "given"
    verb.make(input_folder)
    record_property("fuzz", killed_and_given_again(verb, input_folder, tmp_path, name))
