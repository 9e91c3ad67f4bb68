"""Loading a release on the installed ``datasets`` (5.x): by name and through the public API."""

import pickle
from pathlib import Path

import datasets
import pytest
from loading import NAME, Load, load, release  # noqa: F401
from releases import QUESTIONS, TEXTS, all_tables, make_release, md5, tables

import dureader_retrieval
from builders.core.sampling import size_name


@pytest.mark.parametrize("streaming", [False, True])
def test_every_config_gives_the_rows_that_were_written(everything: Path, load: Load, streaming: bool) -> None:
    for (config, split), rows in all_tables().items():
        assert list(load(config, split, data_dir=str(everything), streaming=streaming)) == rows


def test_samples_of_any_size_load_by_their_name_alone(everything: Path, load: Load) -> None:
    assert "restrain-3-interpolation" not in dureader_retrieval.CONFIGS
    assert load("restrain-3-interpolation", "train", data_dir=str(everything)).num_rows == 3
    with pytest.raises(ValueError, match=r"no rows of config 'restrain-4-interpolation'; it has .*restrain-3-inter"):
        load("restrain-4-interpolation", data_dir=str(everything))
    paper = {f"restrain-{size_name(n)}-interpolation" for n in (14_000, 45_000, 200_000)}
    assert paper <= {*dureader_retrieval.CONFIGS}
    for name in ("restrain-0-interpolation", "restrain-03-interpolation", "restrain-3", "resttest-bucket0"):
        with pytest.raises(ValueError, match=f"'{name}' not found"):
            load(name, data_dir=str(everything))


def test_splits_are_those_of_the_release_that_have_rows(everything: Path, tmp_path: Path, load: Load) -> None:
    """Splits are in the declared order, not in alphabetical order."""
    release = make_release(tmp_path / "some", {**tables(), ("queries", "test"): [], ("test", "test"): []})
    for config, path, splits in (
        ("queries", release, ["queries", "train", "dev"]),
        ("qrels", release, ["train", "dev"]),
        ("resttest-bucket11", everything, ["train", "interpolation", "extrapolation"]),
        ("ccovid-qrels", everything, ["train", "dev"]),
    ):
        assert list(load(config, data_dir=str(path))) == splits
        assert list(load(config, data_dir=str(path), streaming=True)) == splits
    assert dureader_retrieval.splits_of("queries", data_dir=release) == {"queries": 6, "train": 4, "dev": 2}
    assert dureader_retrieval.splits_of("qrels") == {"train": None, "dev": None}  # the archive is not requested
    with pytest.raises(ValueError, match="test"):
        load("qrels", "test", data_dir=str(release))
    with pytest.raises(ValueError, match="no rows of config 'test'"):
        load("test", data_dir=str(release))


def test_rows_have_the_declared_features_and_a_description(release: Path, load: Load) -> None:
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
    assert {"cmedqa-qrels", "ccovid-corpus", "crosslingual", "restrain-45K-extrapolation", "sample-1M-hard"} <= {*names}
    assert datasets.get_dataset_split_names(NAME, "qrels", data_dir=str(release)) == ["train", "dev"]
    builder = datasets.load_dataset_builder(NAME, "corpus", data_dir=str(release))
    assert builder.info.splits["corpus"].num_examples == len(TEXTS)
    assert list(builder.info.features) == ["_id", "title", "text"]
    assert all(config.description for config in dureader_retrieval.DureaderRetrieval.BUILDER_CONFIGS)


def test_stock_builders_still_load(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    given = {"data_files": str(tmp_path / "rows.csv"), "cache_dir": str(tmp_path / "cache")}
    assert datasets.load_dataset("csv", split="train", **given)[0] == {"a": 1, "b": 2}


def test_pickles_prepared_or_streamed(release: Path, tmp_path: Path) -> None:
    builder = dureader_retrieval.DureaderRetrieval(
        config_name="dev", data_dir=str(release), cache_dir=str(tmp_path / "cache")
    )
    assert pickle.loads(pickle.dumps(builder)).config_id == builder.config_id
    stream = builder.as_streaming_dataset(split="dev")
    assert list(pickle.loads(pickle.dumps(stream))) == tables()["dev", "dev"]


def test_data_dir_may_be_relative_a_home_or_odd(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_rebuilt_release_gives_its_new_rows_and_an_unchanged_one_is_prepared_once(release: Path, load: Load) -> None:
    first = load("corpus", "corpus", data_dir=str(release))
    prepared = Path(first.cache_files[0]["filename"])
    before = prepared.stat().st_mtime_ns
    assert load("corpus", "corpus", data_dir=str(release)).cache_files == first.cache_files
    assert first["text"][:] == TEXTS and prepared.stat().st_mtime_ns == before
    texts = [TEXTS[0].replace("四", "五"), *TEXTS[1:]]  # the length is unchanged
    make_release(release, tables(texts))
    for streaming in (False, True):
        rows = load("corpus", "corpus", data_dir=str(release), streaming=streaming)
        assert [row["text"] for row in rows] == texts
