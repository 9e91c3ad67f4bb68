"""Judged annotation rounds, written directly instead of by the steps of `annotate`."""

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from builders.annotate import rounds
from builders.store.reader import open_release

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
Labels = Mapping[tuple[str, str], int]


def judgment(pair: tuple[str, str], label: int, package: str, kind: rounds.Kind = "annotation") -> rounds.Judgment:
    model = "a model" if kind == "model" else None
    return rounds.Judgment(*pair, label, "anna" if model is None else model, NOON, package, 1, kind, model)


def make_round(
    path: Path, release: Path, packages: Mapping[str, tuple[rounds.State, Labels]], split: str = "dev"
) -> Path:
    """Write a round with these packages and states, and Anna's labels of the pairs."""
    (path / "packages").mkdir(parents=True)
    found = []
    for name, (state, labels) in packages.items():
        found.append(rounds.Package(name, len(labels), state=state))
        lines = [msgspec.json.encode(rounds.Item(*pair, "", "")) for pair in labels]
        (path / f"packages/{name}.jsonl").write_bytes(b"\n".join([*lines, b""]))
        rounds.add_judgments(path, [judgment(pair, label, name) for pair, label in labels.items()])
    fingerprint = rounds.fingerprint_of(open_release(release), split)
    whole = rounds.Round(1, release.name, fingerprint, split, "0" * 64, rounds.Rule(), found)
    packed = [
        msgspec.structs.replace(each.package, labels=each.digest if each.package.state == "accepted" else "")
        for each in rounds.standings(path, whole)
    ]
    rounds.write_round(path, msgspec.structs.replace(whole, packages=packed))
    return path
