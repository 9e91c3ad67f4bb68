"""Loading a release on the installed ``datasets`` (5.x). Data that cannot be loaded gives one clear error."""

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from releases import NO_UTF8, QUESTIONS, TEXTS, all_tables, make_release, md5, release_of, tables

import dureader_retrieval
from builders.core.errors import InputError
from builders.core.sampling import size_name
from builders.store.reader import open_release

NAME = "dureader_retrieval"
Load = Callable[..., Any]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release that the test may change."""
    return make_release(tmp_path / "release")


@pytest.fixture(params=["by name", "public API"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """``load(config, split, data_dir=..., ...)`` through the module, in both ways, with an empty cache."""
    cache_dir = str(tmp_path / "cache")

    def load_by_name(config: str, split: str | None = None, **options: Any) -> Any:
        return datasets.load_dataset(NAME, config, split=split, cache_dir=cache_dir, **options)

    def load_by_public_api(*config_and_split: Any, **options: Any) -> Any:
        return dureader_retrieval.load_dataset(*config_and_split, cache_dir=cache_dir, **options)

    return load_by_name if request.param == "by name" else load_by_public_api


@pytest.mark.parametrize("streaming", [False, True])
def test_every_config_gives_the_rows_that_were_written(everything: Path, load: Load, streaming: bool) -> None:
    for (config, split), rows in all_tables().items():
        assert list(load(config, split, data_dir=str(everything), streaming=streaming)) == rows


def test_a_set_that_a_release_lacks_names_the_command_that_adds_the_set(tmp_path: Path, load: Load) -> None:
    release = str(make_release(tmp_path / "release"))
    commands = {
        "cmedqa-qrels": "python -m builders add cmedqa --source PATH [--release DIR] --out DIR",
        "ccovid-corpus": "python -m builders add ccovid",
        "crosslingual-queries": "python -m builders add crosslingual",
        "stress-swap-queries": "python -m builders add stress --kind swap",
        "answers": "python -m builders add answers",
        "original-ids": "python -m builders official --copy",
        "others": "python -m builders similar",
    }
    for config, command in commands.items():
        with pytest.raises(ValueError, match=re.escape(f"no rows of config {config!r}")) as error:
            load(config, data_dir=release)
        assert command in str(error.value)


def test_every_config_that_the_archive_lacks_has_an_origin() -> None:
    for config in dureader_retrieval.CONFIGS:
        if config not in ("corpus", "queries", "qrels", "train", "dev"):
            assert "python -m builders" in dureader_retrieval.describe_missing(config)


def test_samples_of_any_size_load_by_their_name_alone(everything: Path, load: Load) -> None:
    assert "restrain-3-interpolation" not in dureader_retrieval.CONFIGS
    assert load("restrain-3-interpolation", "train", data_dir=str(everything)).num_rows == 3
    with pytest.raises(ValueError, match=r"no rows of config 'restrain-4-interpolation'; it has .*restrain-3-inter"):
        load("restrain-4-interpolation", data_dir=str(everything))
    with pytest.raises(ValueError, match=r"add restrain`"):
        load("restrain-4-interpolation", data_dir=str(everything))
    sizes_of_paper = (14_000, 45_000, 200_000)
    assert {f"restrain-{size_name(size)}-interpolation" for size in sizes_of_paper} <= set(dureader_retrieval.CONFIGS)
    for name in ("restrain-0-interpolation", "restrain-03-interpolation", "restrain-3", "resttest-bucket0"):
        with pytest.raises(ValueError, match=f"'{name}' not found"):
            load(name, data_dir=str(everything))


def test_splits_are_those_of_the_release_that_have_rows(everything: Path, tmp_path: Path, load: Load) -> None:
    """Splits are in the declared order, not in alphabetical order."""
    # A release whose test splits are empty.
    rows = tables()
    rows["queries", "test"] = []
    rows["test", "test"] = []
    release = make_release(tmp_path / "some", rows)

    def check_splits(config: str, path: Path, splits: list[str]) -> None:
        assert list(load(config, data_dir=str(path))) == splits
        assert list(load(config, data_dir=str(path), streaming=True)) == splits

    check_splits("queries", release, ["queries", "train", "dev"])
    check_splits("qrels", release, ["train", "dev"])
    check_splits("resttest-bucket11", everything, ["train", "interpolation", "extrapolation"])
    check_splits("ccovid-qrels", everything, ["train", "dev"])
    assert dureader_retrieval.splits_of("queries", data_dir=release) == {"queries": 6, "train": 4, "dev": 2}
    assert dureader_retrieval.splits_of("qrels") == {"train": None, "dev": None}  # the archive is not requested
    with pytest.raises(ValueError, match="test"):
        load("qrels", "test", data_dir=str(release))
    with pytest.raises(ValueError, match="no rows of config 'test'"):
        load("test", data_dir=str(release))


def test_rows_have_the_declared_features_and_a_citation(release: Path, load: Load) -> None:
    dev = load("dev", "dev", data_dir=str(release))
    text = datasets.Value("string")
    passages = datasets.List({"docid": text, "title": text, "text": text})
    assert dev.features == datasets.Features(
        {"query_id": text, "query": text, "positive_passages": passages, "negative_passages": passages}
    )
    assert load("qrels", "dev", data_dir=str(release)).features["score"] == datasets.Value("int64")
    assert "2022.emnlp-main.357" in dev.info.citation


def test_columns_of_a_newer_release_are_left_out(tmp_path: Path, load: Load) -> None:
    newer = make_release(tmp_path / "newer", extra_column="added")
    assert list(load("dev", "dev", data_dir=str(newer))) == tables()["dev", "dev"]
    assert list(load("corpus", "corpus", data_dir=str(newer), streaming=True)) == tables()["corpus", "corpus"]


def test_own_features_choose_and_cast_columns(release: Path, load: Load) -> None:
    features = datasets.Features({"score": datasets.Value("float32"), "query-id": datasets.Value("string")})
    load("qrels", "dev", data_dir=str(release))  # a prepared copy with other features is not reused
    row = load("qrels", "dev", data_dir=str(release), features=features)[0]
    assert row == {"score": 1.0, "query-id": md5(QUESTIONS["dev"][0])}


def test_names_configs_and_splits(release: Path) -> None:
    names = datasets.get_dataset_config_names(NAME)
    assert names == list(dureader_retrieval.CONFIGS)
    assert names[:6] == ["corpus", "queries", "qrels", "train", "dev", "test"]
    for name in (
        "cmedqa-qrels",
        "ccovid-corpus",
        "crosslingual",
        "stress-drop-queries",
        "restrain-45K-extrapolation",
        "sample-1M-hard",
    ):
        assert name in names
    assert datasets.get_dataset_split_names(NAME, "qrels", data_dir=str(release)) == ["train", "dev"]
    builder = datasets.load_dataset_builder(NAME, "corpus", data_dir=str(release))
    assert builder.info.splits["corpus"].num_examples == len(TEXTS)
    assert list(builder.info.features) == ["_id", "title", "text"]
    assert all(config.description for config in dureader_retrieval.DureaderRetrieval.BUILDER_CONFIGS)


def test_stock_builders_still_load(tmp_path: Path) -> None:
    csv_path = tmp_path / "rows.csv"
    csv_path.write_text("a,b\n1,2\n", encoding="utf-8")
    cache_dir = str(tmp_path / "cache")
    rows = datasets.load_dataset("csv", split="train", data_files=str(csv_path), cache_dir=cache_dir)
    assert rows[0] == {"a": 1, "b": 2}


def test_pickles_prepared_or_streamed(release: Path, tmp_path: Path) -> None:
    builder = dureader_retrieval.DureaderRetrieval(
        config_name="dev", data_dir=str(release), cache_dir=str(tmp_path / "cache")
    )
    assert pickle.loads(pickle.dumps(builder)).config_id == builder.config_id
    stream = builder.as_streaming_dataset(split="dev")
    assert list(pickle.loads(pickle.dumps(stream))) == tables()["dev", "dev"]


def test_data_dir_may_be_relative_a_home_or_odd(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    odd_path = make_release(tmp_path / "资料 a::b#?*")
    monkeypatch.chdir(odd_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    rows = tables()["dev", "dev"]
    stream = load("dev", "dev", data_dir=".", streaming=True)
    cache_files = load("dev", "dev", data_dir=".").cache_files
    assert load("dev", "dev", data_dir=str(odd_path)).cache_files == cache_files
    assert load("dev", "dev", data_dir=f"~/{odd_path.name}").cache_files == cache_files
    monkeypatch.chdir(tmp_path)
    assert list(stream) == rows  # iterated after the working directory changed
    assert list(load("dev", "dev", data_dir=odd_path.name)) == rows


def test_a_rebuilt_release_gives_its_new_rows_and_an_unchanged_one_is_prepared_once(release: Path, load: Load) -> None:
    corpus = load("corpus", "corpus", data_dir=str(release))
    cache_file = Path(corpus.cache_files[0]["filename"])
    mtime_before = cache_file.stat().st_mtime_ns
    assert load("corpus", "corpus", data_dir=str(release)).cache_files == corpus.cache_files
    assert corpus["text"][:] == TEXTS
    assert cache_file.stat().st_mtime_ns == mtime_before
    texts = [TEXTS[0].replace("四", "五"), *TEXTS[1:]]  # the length is unchanged
    make_release(release, tables(texts))
    for streaming in (False, True):
        rows = load("corpus", "corpus", data_dir=str(release), streaming=streaming)
        assert [row["text"] for row in rows] == texts


BUILD_COMMAND = "python -m builders release --raw PATH --out DIR"


def test_a_wrong_data_dir_says_how_to_make_one(tmp_path: Path, load: Load) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("nowhere", "does not exist"), ("", "no manifest.json"), ("file", "")):
        with pytest.raises(FileNotFoundError) as error:
            load("dev", data_dir=str(tmp_path / name))
        message = str(error.value)
        assert reason in message and BUILD_COMMAND in message and str(tmp_path / name) in message
        assert "\n" not in message


def test_a_manifest_that_cannot_be_read_says_why(release: Path, load: Load) -> None:
    manifest_path = release / "manifest.json"
    manifest_path.unlink()
    manifest_path.symlink_to(manifest_path)
    with pytest.raises(ValueError) as error:
        load("dev", data_dir=str(release))
    assert str(error.value).startswith(f"{manifest_path}: cannot be read (Too many levels of symbolic links); ")
    assert BUILD_COMMAND in str(error.value)


def test_an_unknown_or_missing_config_says_what_there_is(tmp_path: Path, load: Load) -> None:
    rows = tables()
    del rows["test", "test"], rows["train", "train"]
    data_dir = str(make_release(tmp_path / "small", rows))
    with pytest.raises(ValueError, match=r"nonsense.*corpus.*queries"):
        load("nonsense", data_dir=data_dir)
    configs = "no rows of config 'test'; it has corpus, dev, qrels, queries"
    with pytest.raises(ValueError, match=f"{configs}.*{BUILD_COMMAND}"):
        load("test", data_dir=data_dir)
    with pytest.raises(ValueError, match=r"name a config.*corpus"):
        load(None, data_dir=data_dir)
    with pytest.raises(ValueError, match="data_dir=DIR, not data_files"):
        load("dev", data_files=str(tmp_path / "*.parquet"))


def flip_a_byte(path: Path) -> None:
    """Change one byte, and restore the mtime, as a careless copy does."""
    stat_before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns))


def truncate(path: Path) -> None:
    """Remove the last bytes of a file."""
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_proc": 2}, {"streaming": True}], ids=["plain", "num_proc", "streaming"])
@pytest.mark.parametrize(
    ("damage", "message"), [(flip_a_byte, "SHA-256"), (truncate, "bytes, but manifest"), (Path.unlink, "listed")]
)
def test_a_damaged_shard_is_named(
    release: Path, load: Load, prepared: bool, options: dict[str, Any], damage: Callable[[Path], None], message: str
) -> None:
    if prepared:
        load("corpus", "corpus", data_dir=str(release))
    shard = sorted((release / "corpus").iterdir())[1]
    damage(shard)
    for _ in range(2):  # the failure itself leaves nothing in the cache
        with pytest.raises(ValueError, match=message) as error:
            list(load("corpus", "corpus", data_dir=str(release), **options))
        assert str(error.value).startswith(f"{shard}: ")
        assert "\n" not in str(error.value)
    assert list(load("dev", "dev", data_dir=str(release))) == tables()["dev", "dev"]  # the other configs are intact


def without_a_shard(manifest: dict[str, Any]) -> str:
    """Return a manifest that does not list the second shard of the corpus."""
    manifest["files"] = [entry for entry in manifest["files"] if "corpus-00001" not in entry["path"]]
    return json.dumps(manifest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: json.dumps(manifest)[:-5],
        lambda manifest: "[" * 50_000,
        lambda manifest: json.dumps(manifest).replace('"rows": 2', '"rows": 1e400'),
        lambda manifest: json.dumps(manifest | {"format": "99"}),
        lambda manifest: json.dumps(manifest | {"name": "other"}),
        lambda manifest: json.dumps(manifest | {"files": [{"path": "corpus/corpus-00000-of-00001.parquet"}]}),
        without_a_shard,
    ],
)
def test_a_damaged_manifest_is_named(release: Path, load: Load, edit: Callable[[dict[str, Any]], str]) -> None:
    path = release / "manifest.json"
    path.write_text(edit(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match="expected a manifest of dureader_retrieval, format 1") as error:
        load("corpus", data_dir=str(release))
    assert str(error.value).startswith(f"{path}: ")


def test_a_release_of_a_later_version_asks_for_an_upgrade(release: Path, load: Load) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"format": 99}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrote it \(format 99\); upgrade dureader-retrieval"):
        load("corpus", data_dir=str(release))
    with pytest.raises(InputError, match=r"format: expected 1, found 99; .* upgrade dureader-retrieval"):
        open_release(release)


def test_rows_that_the_manifest_does_not_count_are_refused(release: Path, load: Load) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    (dev_entry,) = [entry for entry in manifest["files"] if entry["path"].startswith("dev/")]
    dev_entry["rows"] += 1
    path.write_text(json.dumps(manifest), encoding="utf-8")
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"has 2 rows, but manifest\.json lists 3"):
            list(load("dev", "dev", data_dir=str(release), streaming=streaming))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": pa.array([1, 2])}, "expected the column text as string, found int64"),
        ({"text": pa.array(["a", None])}, "expected no null, found one in the column text"),
        ({"text": NO_UTF8}, "Invalid UTF8"),
        ({"title": None}, "expected the columns _id, title, text, found _id, text"),
    ],
)
def test_a_column_of_something_else_is_named(tmp_path: Path, load: Load, change: Any, message: str) -> None:
    columns = {"_id": pa.array(["a", "b"]), "title": pa.array(["", ""]), "text": pa.array(["c", "d"])}
    columns |= change
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    release = str(release_of(tmp_path / "release", table))
    for streaming in (False, True):
        with pytest.raises(ValueError, match=message) as error:
            list(load("corpus", "corpus", data_dir=release, streaming=streaming))
        assert "corpus-00000-of-00001.parquet: " in str(error.value)
