"""The JSON files of a release: unchanged files, files of later versions, and allowed names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

import dureader_retrieval
from builders.store import layout
from builders.store.layout import CONFIGS, MANIFEST, SETS, config_of
from builders.store.manifest import write_manifest
from builders.store.reader import open_release
from tests.releases import make_release

Change = Callable[[dict[str, Any]], Any]


def changed(path: Path, change: Change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_manifest_is_written_as_it_was_read(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    written = (release / MANIFEST).read_bytes()
    opened = open_release(release)
    write_manifest(
        release, [entry for entry in opened.manifest.files if entry.rows is not None], opened.manifest.builds
    )
    assert (release / MANIFEST).read_bytes() == written


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    known = open_release(release)

    def later(manifest: dict[str, Any]) -> None:
        manifest["licence"] = {"text": ["apache-2.0"]}
        for part in (manifest["files"], manifest["builds"]):
            part[0]["later"] = 1

    changed(release / MANIFEST, later)
    assert open_release(release) == known


# The table of sets, configs, splits and columns, and everything that must agree with it

SAMPLES = [
    *(f"restrain-{size}-{which}polation" for size in ("14K", "45K", "200K", "8") for which in ("inter", "extra")),
    *(f"resttest-bucket{number}" for number in (1, 5, 12)),
    *(f"sample-{size}{kind}" for size in ("10K", "1M", "1500") for kind in ("", "-hard")),
]


def test_the_dataset_module_declares_the_same_configs() -> None:
    fixed = [config.name for config in CONFIGS if not any(word in config.name for word in layout._ANY)]
    assert fixed == [name for name in dureader_retrieval.CONFIGS if not name.startswith(("rest", "sample"))]
    for name in [*fixed, *SAMPLES]:
        columns, splits, _ = dureader_retrieval._declaration(name)
        mine = config_of(name)
        assert mine.splits == splits
        assert mine.columns == datasets.Features(dureader_retrieval.COLUMNS[columns]).arrow_schema.remove_metadata()


@pytest.mark.parametrize("name", ["corpora", "news-corpus", "restrain-big-interpolation", "restrain-0K-extrapolation"])
def test_what_is_not_in_the_table_is_no_config(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no config of a release"):
        config_of(name)
    with pytest.raises(ValueError):
        dureader_retrieval._declaration(name)


def test_every_set_is_made_of_declared_configs_and_splits() -> None:
    for name, found in SETS.items():
        assert config_of(found.queries).set == name
        for split in found.table3.values():
            assert split in config_of(found.queries).splits and split in config_of(found.qrels).splits
        for split, joined in found.joined.items():
            assert split in config_of(joined).splits and config_of(joined).set == name
        assert found.translated == ("zh_id" in config_of(found.queries).columns.names)
    assert {config.set for config in CONFIGS} == set(SETS)
