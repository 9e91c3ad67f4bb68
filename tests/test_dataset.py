"""Loading a release on the installed ``datasets`` (5.x): by name, through the public API, and by its path alone."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from commands import ROOT
from releases import QUESTIONS, TEXTS, all_tables, draft_everything, make_release, md5, tables

import dureader_retrieval
from builders.extrapolate.restrain import size_name
from builders.store.reader import open_release

NAME = "dureader_retrieval"
HOW = "python -m builders release --raw PATH --out DIR"
Load = Callable[..., Any]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with configs of every kind; not to be changed."""
    return draft_everything(tmp_path_factory.mktemp("everything") / "release")


@pytest.fixture(params=["by name", "public API"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """``load(config, split, data_dir=..., ...)`` in both ways that need the module, with a cache of the test's own."""
    cache = str(tmp_path / "cache")
    if request.param == "by name":
        return lambda *args, **kwargs: datasets.load_dataset(
            NAME, args[0], split=args[1] if args[1:] else None, cache_dir=cache, **kwargs
        )
    return lambda *args, **kwargs: dureader_retrieval.load_dataset(*args, cache_dir=cache, **kwargs)


def python(code: str, cwd: Path, home: Path, **environment: str) -> Any:
    """What ``code``, run by a fresh interpreter in ``cwd``, prints as its last line, as JSON."""
    # Left at once when done: the library's own Parquet reader, stopped while streaming, can abort an interpreter that
    # shuts down (apache/arrow issue 45214), after all rows were read.
    code = f"{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("streaming", [False, True])
def test_every_config_gives_the_rows_that_were_written(everything: Path, load: Load, streaming: bool) -> None:
    for (config, split), rows in all_tables().items():
        assert list(load(config, split, data_dir=str(everything), streaming=streaming)) == rows


def test_the_declared_splits_come_in_their_order(everything: Path, load: Load) -> None:
    stream = load("resttest-bucket11", data_dir=str(everything), streaming=True)
    assert list(stream) == ["train", "interpolation", "extrapolation"]
    assert list(load("ccovid-qrels", data_dir=str(everything))) == ["train", "dev"]


def test_samples_of_any_size_load_by_their_name_alone(everything: Path, load: Load) -> None:
    assert "restrain-3-interpolation" not in dureader_retrieval.CONFIGS
    assert load("restrain-3-interpolation", "train", data_dir=str(everything)).num_rows == 3
    with pytest.raises(ValueError, match=r"no rows of config 'restrain-4-interpolation'; it has .*restrain-3-inter"):
        load("restrain-4-interpolation", data_dir=str(everything))
    # The builder's own names: the paper's sizes are those that are listed.
    assert [f"restrain-{size_name(n)}-interpolation" in dureader_retrieval.CONFIGS for n in (14_000, 45_000, 200_000)]
    for name in (
        "restrain-0-interpolation",
        "restrain-03-interpolation",
        "restrain-3",
        "resttest-bucket",
        "resttest-bucket0",
    ):
        with pytest.raises(ValueError, match=f"'{name}' not found"):
            load(name, data_dir=str(everything))


def test_two_releases_side_by_side_keep_their_own_rows(everything: Path, release: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    builders = [
        dureader_retrieval.DureaderRetrieval(config_name="dev", data_dir=str(path), cache_dir=cache)
        for path in (everything, release)
    ]
    assert builders[0].config_id != builders[1].config_id
    assert builders[0].config.sources["dev"][0].path.startswith(str(everything))


def test_splits_are_those_of_the_release(release: Path, load: Load) -> None:
    assert list(load("queries", data_dir=str(release))) == ["train", "dev", "test"]
    assert list(load("qrels", data_dir=str(release))) == ["train", "dev"]
    assert list(load("qrels", data_dir=str(release), streaming=True)) == ["train", "dev"]
    with pytest.raises(ValueError, match="test"):
        load("qrels", "test", data_dir=str(release))


def test_a_split_of_no_rows_is_left_out(tmp_path: Path, load: Load) -> None:
    release = make_release(tmp_path / "release", {**tables(), ("queries", "test"): [], ("test", "test"): []})
    assert list(load("queries", data_dir=str(release))) == ["train", "dev"]
    with pytest.raises(ValueError, match="no rows of config 'test'"):
        load("test", data_dir=str(release))


def test_several_processes_share_the_shards(release: Path, load: Load) -> None:
    assert len(open_release(release).shards("corpus", "corpus")) == 3
    assert load("corpus", "corpus", data_dir=str(release), num_proc=2)["text"][:] == TEXTS
    assert load("corpus", "corpus", data_dir=str(release), streaming=True).num_shards == 3


def test_features_and_card(release: Path, load: Load) -> None:
    dev = load("dev", "dev", data_dir=str(release))
    text = datasets.Value("string")
    passages = datasets.List({"docid": text, "title": text, "text": text})
    assert dev.features == datasets.Features(
        {"query_id": text, "query": text, "positive_passages": passages, "negative_passages": passages}
    )
    assert load("qrels", "dev", data_dir=str(release)).features["score"] == datasets.Value("int64")
    assert "2022.emnlp-main.357" in dev.info.citation
    assert dev.info.license == "Apache-2.0"
    assert dev.info.homepage.startswith("https://github.com/baidu/DuReader")
    assert "passages" in dev.info.description


def test_columns_of_a_newer_release_are_left_out(tmp_path: Path, load: Load) -> None:
    newer = make_release(tmp_path / "newer", extra_column="added")
    assert list(load("dev", "dev", data_dir=str(newer))) == tables()["dev", "dev"]
    assert list(load("corpus", "corpus", data_dir=str(newer), streaming=True)) == tables()["corpus", "corpus"]


def test_own_features_choose_and_cast_columns(release: Path, load: Load) -> None:
    features = datasets.Features({"score": datasets.Value("float32"), "query-id": datasets.Value("string")})
    load("qrels", "dev", data_dir=str(release))  # a prepared copy with other features is not taken for this one
    row = load("qrels", "dev", data_dir=str(release), features=features)[0]
    assert row == {"score": 1.0, "query-id": md5(QUESTIONS["dev"][0])}


def test_names_configs_and_splits(release: Path) -> None:
    names = datasets.get_dataset_config_names(NAME)
    assert names[:6] == ["corpus", "queries", "qrels", "train", "dev", "test"]
    assert names[6:14] == [
        *(f"{name}-{table}" for name in ("cmedqa", "ccovid") for table in ("corpus", "queries", "qrels")),
        *("crosslingual-queries", "crosslingual"),
    ]
    assert names[14:] == [
        *(
            f"restrain-{size}-{which}"
            for size in ("14K", "45K", "200K")
            for which in ("interpolation", "extrapolation")
        ),
        *(f"resttest-bucket{number}" for number in range(1, 6)),
    ]
    assert datasets.get_dataset_split_names(NAME, "qrels", data_dir=str(release)) == ["train", "dev"]
    builder = datasets.load_dataset_builder(NAME, "corpus", data_dir=str(release))
    assert builder.info.splits["corpus"].num_examples == len(TEXTS)
    assert list(builder.info.features) == ["_id", "title", "text"]
    assert all(config.description for config in dureader_retrieval.DureaderRetrieval.BUILDER_CONFIGS)


def test_stock_builders_still_load(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    cache = str(tmp_path / "cache")
    assert datasets.load_dataset("csv", data_files=str(tmp_path / "rows.csv"), split="train", cache_dir=cache)[0] == {
        "a": 1,
        "b": 2,
    }


def test_pickles_prepared_or_streamed(release: Path, tmp_path: Path) -> None:
    builder = dureader_retrieval.DureaderRetrieval(
        config_name="dev", data_dir=str(release), cache_dir=str(tmp_path / "cache")
    )
    assert pickle.loads(pickle.dumps(builder)).config_id == builder.config_id
    stream = builder.as_streaming_dataset(split="dev")
    assert list(pickle.loads(pickle.dumps(stream))) == tables()["dev", "dev"]


def test_data_dir_may_be_relative_a_home_or_hold_odd_characters(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = make_release(tmp_path / "资料 a::b#?*")
    monkeypatch.chdir(odd)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    rows = tables()["dev", "dev"]
    stream = load("dev", "dev", data_dir=".", streaming=True)
    files = [load("dev", "dev", data_dir=path).cache_files for path in (".", str(odd), f"~/{odd.name}")]
    assert files[0] == files[1] == files[2]
    monkeypatch.chdir(tmp_path)
    assert list(stream) == rows  # iterated after the working directory changed
    assert list(load("dev", "dev", data_dir=odd.name)) == rows


# What must not be stale


def rebuilt(release: Path) -> list[str]:
    """Build the release anew in place with one passage changed; returns the texts."""
    texts = [TEXTS[0].replace("四", "五"), *TEXTS[1:]]  # as long as before
    make_release(release, tables(texts))
    return texts


def test_a_rebuilt_release_gives_its_new_rows(release: Path, load: Load) -> None:
    assert load("corpus", "corpus", data_dir=str(release))["text"][:] == TEXTS
    texts = rebuilt(release)
    assert load("corpus", "corpus", data_dir=str(release))["text"][:] == texts
    assert [row["text"] for row in load("corpus", "corpus", data_dir=str(release), streaming=True)] == texts


def test_an_unchanged_release_is_prepared_once(release: Path, load: Load) -> None:
    path = Path(load("corpus", "corpus", data_dir=str(release)).cache_files[0]["filename"])
    before = path.stat().st_mtime_ns
    again = Path(load("corpus", "corpus", data_dir=str(release)).cache_files[0]["filename"])
    assert (again, again.stat().st_mtime_ns) == (path, before)


def test_a_rebuilt_release_by_its_path_gives_its_new_rows(release: Path, tmp_path: Path) -> None:
    code = f"""
import datasets, json
print(json.dumps(datasets.load_dataset({str(release)!r}, "qrels", split="dev")["score"][:]))
"""
    assert python(code, tmp_path, tmp_path / "home") == [1, 1]
    rows = tables()
    for row in rows["qrels", "dev"]:
        row["score"] = 2  # no file and no split changes its size
    make_release(release, rows)
    assert python(code, tmp_path, tmp_path / "home") == [2, 2]


# By its path, with no code of ours


@pytest.mark.parametrize("streaming", [False, True])
def test_the_release_loads_by_its_path_alone(everything: Path, tmp_path: Path, streaming: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""
import datasets, json, sys
names = datasets.get_dataset_config_names({str(everything)!r})
rows = {{name: {{split: list(data) for split, data in
        datasets.load_dataset({str(everything)!r}, name, streaming={streaming}).items()}} for name in names}}
assert "dureader_retrieval" not in sys.modules
print(json.dumps(rows))
"""
    found = python(code, elsewhere, tmp_path / "home", PYTHONPATH="", HF_DATASETS_OFFLINE="1")
    assert {(config, split): rows for config in found for split, rows in found[config].items()} == all_tables()


# From any working directory, without a network


@pytest.mark.parametrize("where", ["empty", "full", "repository"])
def test_the_working_directory_does_not_matter(release: Path, tmp_path: Path, where: str) -> None:
    cwd = ROOT if where == "repository" else tmp_path / where
    cwd.mkdir(exist_ok=True)
    if where == "full":
        make_release(cwd / "dureader_retrieval")  # a folder of the dataset's own name
        (cwd / "train.csv").write_text("a\n1\n", encoding="utf-8")
        (cwd / "dureader_retrieval.json").write_text("{}", encoding="utf-8")
    code = f"""
import json, os, socket
asked = []
def refuse(*args, **kwargs):
    asked.append(args[0])
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
import datasets, dureader_retrieval
listed = []
walk = os.scandir
os.scandir = lambda path=".": listed.append(str(path)) or walk(path)
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r})["dev"]
inside = [path for path in listed if os.path.abspath(path) == os.getcwd()]
print(json.dumps([list(dev), dev.cache_files, [str(name) for name in asked], inside]))
"""
    home = tmp_path / "home"
    rows, files, asked, listed = python(code, cwd, home)
    assert rows == tables()["dev", "dev"]
    assert asked == []
    assert listed == []
    # Prepared from another working directory, the same copy serves.
    code = f"""
import datasets, dureader_retrieval, json
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r}, split="dev")
print(json.dumps(dev.cache_files))
"""
    assert python(code, tmp_path, home, HF_DATASETS_OFFLINE="1") == files


# One clear error


def test_a_wrong_data_dir_says_how_to_make_one(tmp_path: Path, load: Load) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist") as missing:
        load("dev", data_dir=str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in str(missing.value)
    with pytest.raises(FileNotFoundError, match=r"no manifest\.json") as empty:
        load("dev", data_dir=str(tmp_path))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileNotFoundError) as no_folder:
        load("dev", data_dir=str(file))
    for error in (missing, empty, no_folder):
        assert HOW in str(error.value)
        assert "\n" not in str(error.value)


def test_an_unknown_or_missing_config_says_what_there_is(tmp_path: Path, load: Load) -> None:
    rows = {key: value for key, value in tables().items() if key[0] not in ("test", "train")}
    small = make_release(tmp_path / "small", rows)
    with pytest.raises(ValueError, match=r"nonsense.*corpus.*queries"):
        load("nonsense", data_dir=str(small))
    with pytest.raises(ValueError, match="no rows of config 'test'; it has corpus, dev, qrels, queries") as error:
        load("test", data_dir=str(small))
    assert HOW in str(error.value)
    with pytest.raises(ValueError, match=r"name a config.*corpus"):
        load(None, data_dir=str(small))
    with pytest.raises(ValueError, match="data_dir=DIR, not data_files"):
        load("dev", data_files=str(small / "dev" / "*.parquet"))


def flip_a_byte(path: Path) -> None:
    """Change one byte and set the time of change back, as a careless copy would."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("how", [{}, {"num_proc": 2}, {"streaming": True}], ids=["plain", "num_proc", "streaming"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [(flip_a_byte, "SHA-256"), (truncate, "bytes where manifest"), (Path.unlink, "listed")],
)
def test_a_damaged_shard_is_named(
    release: Path, load: Load, prepared: bool, how: dict[str, Any], damage: Callable[[Path], None], words: str
) -> None:
    if prepared:
        load("corpus", "corpus", data_dir=str(release))
    shard = sorted((release / "corpus").iterdir())[1]
    damage(shard)
    for _ in range(2):  # the failure itself leaves nothing in the cache
        with pytest.raises(ValueError, match=words) as error:
            list(load("corpus", "corpus", data_dir=str(release), **how))
        assert str(error.value).startswith(f"{shard}: ")
        assert "\n" not in str(error.value)
    assert list(load("dev", "dev", data_dir=str(release))) == tables()["dev", "dev"]  # the other configs are whole


def without_a_shard(manifest: dict[str, Any]) -> str:
    manifest["files"] = [entry for entry in manifest["files"] if "corpus-00001" not in entry["path"]]
    return json.dumps(manifest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: json.dumps(manifest)[:-5],
        lambda manifest: "[]",
        lambda manifest: json.dumps({**manifest, "format": 99}),
        lambda manifest: json.dumps({**manifest, "name": "other"}),
        lambda manifest: json.dumps({**manifest, "files": [{"path": "corpus/corpus-00000-of-00001.parquet"}]}),
        without_a_shard,
    ],
    ids=["truncated", "list", "format", "name", "entry", "shard"],
)
def test_a_damaged_manifest_is_named(release: Path, load: Load, edit: Callable[[dict[str, Any]], str]) -> None:
    path = release / "manifest.json"
    path.write_text(edit(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match="expected a manifest of dureader_retrieval, format 1") as error:
        load("corpus", data_dir=str(release))
    assert str(error.value).startswith(f"{path}: ")


def test_rows_that_the_manifest_does_not_count_are_refused(release: Path, load: Load) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    next(entry for entry in manifest["files"] if entry["path"].startswith("dev/"))["rows"] += 1
    path.write_text(json.dumps(manifest), encoding="utf-8")
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"has 2 rows where manifest\.json says 3"):
            list(load("dev", "dev", data_dir=str(release), streaming=streaming))


def test_a_missing_column_is_named(tmp_path: Path, load: Load) -> None:
    from unittest import mock

    import pyarrow as pa
    import releases

    rows = {("corpus", "corpus"): [{"_id": md5("a"), "text": "a"}]}
    schema = pa.schema([("_id", pa.string()), ("text", pa.string())])
    with mock.patch.object(releases, "schema_of", lambda config: schema):
        old = make_release(tmp_path / "old", rows)
    with pytest.raises(ValueError, match="expected the columns _id, title, text; it has _id, text"):
        load("corpus", "corpus", data_dir=str(old))


def test_streaming_has_no_processes(release: Path, load: Load) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=r"num_proc|streaming"):
        load("dev", data_dir=str(release), streaming=True, num_proc=2)


def test_the_import_survives_a_datasets_without_the_private_hook(release: Path, tmp_path: Path) -> None:
    code = f"""
import json, warnings
import datasets.load
del datasets.load.PackagedDatasetModuleFactory
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dureader_retrieval
messages = [str(warning.message) for warning in caught if "dureader_retrieval" in str(warning.message)]
print(json.dumps([messages, list(dureader_retrieval.load_dataset("dev", "dev", data_dir={str(release)!r}))]))
"""
    messages, rows = python(code, tmp_path, tmp_path / "home")
    assert len(messages) == 1
    assert "dureader_retrieval.load_dataset" in messages[0]
    assert rows == tables()["dev", "dev"]
