"""How a copy differs: from what was published, and from a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builders.common.files import read_toml
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release

_PUBLISHED = Path(__file__).parent.parent / "check" / "published.toml"  # the paper's Table 3 and Section 2.2.2


def published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """By what is counted: the copy's number (None: it has none), and the published one."""
    paper = read_toml(_PUBLISHED)
    found: dict[str, list[int | None]] = {
        "passages": [stats["collections"]["corpus"]["passages"], paper["collections"]["corpus"]["passages"]]
    }
    for split in SPLITS:
        for key, what in (("queries", "queries"), ("positive_passages", "judgments")):
            found[f"{split} {what}"] = [stats["table3"].get(split, {}).get(key), paper["table3"][split][key]]
    return found


def compared(copy: Path, release: Release) -> dict[str, Any]:
    """What copy and release both have, and what one has alone, by the ids of the texts, with an example of each."""
    mine = open_release(copy)
    ids = {each for batch in mine.batches("corpus", "corpus", ["_id"]) for each in batch["_id"].to_pylist()}
    missing = release.missing("corpus", "corpus", ids)
    rest = release.rows("corpus", "corpus") - (len(ids) - len(missing))
    found: dict[str, Any] = {"passages": {"both": len(ids) - len(missing), "copy": len(missing), "release": rest}}
    if missing:
        found["passages"]["copy_example"] = missing[0]
    for split in SPLITS:
        for config, what, columns in (
            ("queries", "queries", ["_id"]),
            ("qrels", "judgments", ["query-id", "corpus-id"]),
        ):
            if {(config, split)} <= {*mine.splits()} & {*release.splits()}:
                ours, theirs = ({*_rows(each, config, split, columns)} for each in (mine, release))
                found[f"{split} {what}"] = _sides(ours, theirs)
    return found


def _rows(release: Release, config: str, split: str, columns: list[str]) -> Iterator[str]:
    for batch in release.batches(config, split, columns):
        yield from map(" ".join, zip(*(batch[column].to_pylist() for column in columns), strict=True))


def _sides(ours: set[str], theirs: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"both": len(ours & theirs), "copy": len(ours - theirs), "release": len(theirs - ours)}
    for side, alone in (("copy", ours - theirs), ("release", theirs - ours)):
        if alone:
            found[f"{side}_example"] = min(alone)
    return found


def differences_text(copy: Mapping[str, Any]) -> str:
    """Both as aligned text."""
    lines = [f"{'':<18}{'this copy':>12}{'published':>12}{'difference':>12}"]
    for what, (mine, theirs) in copy["published"].items():
        if mine is not None:
            lines.append(f"{what:<18}{mine:>12,}{theirs:>12,}{mine - theirs:>+12,}")
    for what, times in copy["findings"].items():
        lines.append(f"{what}: {times:,}")
    if "release" in copy:
        lines += ["", f"{'':<18}{'in both':>12}{'copy only':>12}{'release only':>14}"]
        for what, sides in copy["release"].items():
            lines.append(f"{what:<18}{sides['both']:>12,}{sides['copy']:>12,}{sides['release']:>14,}")
        for what, sides in copy["release"].items():
            for side in ("copy", "release"):
                if example := sides.get(f"{side}_example"):
                    lines.append(f"{what} of the {side} only, such as {example}")
    return "\n".join(lines)
