"""Shards, manifests and the table of configs: damaged or foreign content is refused."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from commands import run
from releases import BUILD, TEXTS, make_release, md5, release_of, tables

import dureader_retrieval
from baselines.core.passages import open_passages
from builders.core import cache
from builders.core.errors import InputError
from builders.store.draft import draft_release
from builders.store.layout import CONFIGS, MANIFEST, SETS, config_of
from builders.store.loader_tables import VERSION_LINES, generate_tables, replace_generated, replace_version
from builders.store.manifest import write_manifest
from builders.store.reader import Release, open_release
from builders.store.runs import write_run
from builders.store.shards import wrong_values

SHARD = "corpus/corpus-00001-of-00003.parquet"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def texts(release: Release) -> list[str]:
    """Return the texts of the corpus."""
    corpus_texts = []
    for batch in release.batches("corpus", "corpus", ["text"]):
        corpus_texts += batch["text"].to_pylist()
    return corpus_texts


def flip_bit(path: Path, bit: int) -> bytes:
    """Flip one bit of a file, and return the original content."""
    original_content = path.read_bytes()
    content = bytearray(original_content)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return original_content


def test_bits_that_rot_after_verification_give_no_other_rows(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged disk does not change a file's times, so that the file still counts as verified."""
    monkeypatch.setattr(cache, "fault_once", lambda *_, **__: "")
    opened = open_release(release)
    path = release / SHARD
    damaged_count = 0
    for bit in range(0, 8 * path.stat().st_size, 29):
        original_content = flip_bit(path, bit)
        try:
            assert texts(opened) == TEXTS  # the bit is in a part of the footer that no reader needs
        except InputError as error:
            assert str(error).startswith(f"{path}: is damaged (") and "\n" not in str(error)
            damaged_count += 1
        with pytest.raises(InputError, match=f"{SHARD}: has the SHA-256"), opened.files("corpus", "corpus"):
            pass
        path.write_bytes(original_content)
    assert damaged_count > 100


def test_verbs_read_an_empty_split(tmp_path: Path) -> None:
    rows = {pair: [] if "dev" in pair else rows for pair, rows in tables().items()}
    release = make_release(tmp_path / "release", rows)
    write_run(tmp_path / "run", [("q", [("p", 1.0)])])
    run("builders", "check", "--release", release)
    words = ("annotate", "pool", "candidates", "--runs", tmp_path / "run", "--out", tmp_path / "out")
    assert "queries/dev lacks" in run("builders", words, "--release", release, code=1).error


def test_passages_are_read_by_row_and_by_id(release: Path, tmp_path: Path) -> None:
    passages = pickle.loads(pickle.dumps(open_passages(open_release(release), keep=tmp_path / "keep")))
    assert passages.texts([4, 0, 4]) == [TEXTS[4], TEXTS[0], TEXTS[4]]
    assert passages.rows([md5(TEXTS[3]), "none", md5(TEXTS[1])]).tolist() == [3, -1, 1]
    with pytest.raises(IndexError):
        passages.texts([-1])


def entries(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the corpus's shards."""
    return [entry for entry in manifest["files"] if entry["path"].startswith("corpus/")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"].remove(entries(m)[1]), "expected corpus/corpus-00000-of-00002.parquet, found corpus/"),
        (lambda m: m["files"].append(entries(m)[1]), f"'{SHARD}' is listed twice"),
        (lambda m: m["files"].reverse(), "expected corpus/corpus-00000-of-00003.parquet, found corpus/"),
        (
            lambda m: entries(m)[0].update(path="corpus/corpus-0/../../../x"),
            "has the part '..'; expected a plain relative",
        ),
        (lambda m: entries(m)[1].update(rows=1), f"{SHARD}: has 2 rows, but the manifest lists 1"),
        (lambda m: entries(m)[1].update(sha256=entries(m)[0]["sha256"]), f"{SHARD}: has the SHA-256"),
    ],
)
def test_a_manifest_with_other_shards_is_one_error(
    release: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    manifest = json.loads((release / MANIFEST).read_text())
    change(manifest)
    (release / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError) as error:
        texts(open_release(release))
    assert message in str(error.value)


def test_a_release_that_another_replaces_while_it_is_read_is_said_so(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    batches = opened.batches("corpus", "corpus", ["text"])
    first_texts = next(batches).column("text").to_pylist()
    new_release = make_release(tmp_path / "other", tables([f"other {text}" for text in TEXTS]))
    release.rename(tmp_path / "old")
    new_release.rename(release)
    assert first_texts == TEXTS[:2]
    for read in (lambda: next(batches), lambda: opened.rows("corpus", "corpus")):
        with pytest.raises(InputError, match="release: was replaced by another release during the reading; run"):
            read()
    with pytest.raises(InputError, match="was replaced by another release"), opened.files("corpus", "corpus"):
        pass


CORPUS = {"_id": pa.array(["a", "b"]), "title": pa.array(["", ""]), "text": pa.array(["c", "d"])}


def test_texts_may_hold_null_characters_and_a_shard_more_columns(tmp_path: Path) -> None:
    columns = CORPUS | {"text": pa.array(["c\0", ""]), "more": pa.array([None, 1])}
    release = open_release(release_of(tmp_path / "release", pa.table(columns)))
    assert release.table("corpus", "corpus", ["text"])["text"].to_pylist() == ["c\0", ""]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("_id", "q\0"),
        ("zh_id", "q\0"),
        ("original-id", "q\0"),
        ("original_id", "q\0"),
        ("answer_passages", [["p", "p\0"]]),
    ],
)
def test_ids_hold_no_null_characters(column: str, value: Any) -> None:
    batch = pa.RecordBatch.from_pylist([{column: value}])
    assert wrong_values(batch) == f"column {column}: expected ids without null characters"


def test_a_release_with_a_shard_of_no_config_is_not_added_to(tmp_path: Path) -> None:
    base = open_release(release_of(tmp_path / "release", pa.table(CORPUS), "nonsense", "dev"))
    message = r"nonsense/dev-00000-of-00001\.parquet: is in a folder 'nonsense', which is not"
    with pytest.raises(InputError, match=message), draft_release(tmp_path / "out", BUILD, base):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["release"]


Change = Callable[[dict[str, Any]], Any]


def change_json(path: Path, change: Change) -> None:
    """Apply the change to the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_manifest_is_written_as_it_was_read(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    written = (release / MANIFEST).read_bytes()
    opened = open_release(release)
    shards = [file for file in opened.manifest.files if file.rows is not None]
    write_manifest(release, shards, opened.manifest.builds)
    assert (release / MANIFEST).read_bytes() == written


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    opened_before = open_release(release)

    def add_later_fields(manifest: dict[str, Any]) -> None:
        manifest["licence"] = {"text": ["apache-2.0"]}
        for part in (manifest["files"], manifest["builds"]):
            part[0]["later"] = 1

    change_json(release / MANIFEST, add_later_fields)
    assert open_release(release) == opened_before


# The table of sets, configs, splits and columns, and everything that must agree with it

SAMPLES = ["resttest-bucket1", "resttest-bucket5", "resttest-bucket12"]
for _size in ("14K", "45K", "200K", "8"):
    SAMPLES += [f"restrain-{_size}-interpolation", f"restrain-{_size}-extrapolation"]
for _size in ("10K", "1M", "1500"):
    SAMPLES += [f"sample-{_size}", f"sample-{_size}-hard"]


def test_the_dataset_module_declares_the_same_configs() -> None:
    fixed = [config.name for config in CONFIGS if "SIZE" not in config.name and "NUMBER" not in config.name]
    assert fixed == [name for name in dureader_retrieval.CONFIGS if not name.startswith(("rest", "sample"))]
    for name in fixed + SAMPLES:
        columns, splits, _ = dureader_retrieval._declaration(name)
        config = config_of(name)
        assert config.splits == splits
        assert config.columns == datasets.Features(dureader_retrieval.COLUMNS[columns]).arrow_schema.remove_metadata()


def test_the_generated_tables_are_up_to_date() -> None:
    for path, lines in generate_tables().items():
        text = path.read_text(encoding="utf-8")
        assert replace_generated(text, lines) == text, "run `python -m builders.store.loader_tables`"


def test_the_version_of_the_loader_and_of_the_citation_is_that_of_the_project() -> None:
    for path in VERSION_LINES:
        text = path.read_text(encoding="utf-8")
        assert replace_version(path, text) == text, "run `python -m builders.store.loader_tables`"


@pytest.mark.parametrize("name", ["corpora", "news-corpus", "restrain-big-interpolation", "restrain-0K-extrapolation"])
def test_what_is_not_in_the_table_is_no_config(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no config of a release"):
        config_of(name)
    with pytest.raises(ValueError):
        dureader_retrieval._declaration(name)


def test_every_set_is_made_of_declared_configs_and_splits() -> None:
    for name, declared_set in SETS.items():
        queries = config_of(declared_set.queries)
        assert queries.set == name
        for split in declared_set.table3.values():
            assert split in queries.splits
            assert split in config_of(declared_set.qrels).splits
        for split, joined_config in declared_set.joined.items():
            assert split in config_of(joined_config).splits
            assert config_of(joined_config).set == name
        assert declared_set.translated == ("zh_id" in queries.columns.names)
        assert declared_set.original_column in ("", *queries.columns.names[2:])
        assert bool(declared_set.original_column) == (len(queries.columns.names) > 2)
    assert {config.set for config in CONFIGS} == set(SETS)
