"""`official`: from archives to a release, to official files, and to the same release again."""

import json
import shutil
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from commands import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_archives import (
    BOTH,
    DEV,
    ORIGINAL,
    PASSAGES,
    PREPROCESSED,
    TRAIN,
    original_files,
    preprocessed_files,
    tables,
)
from releases import md5

from builders.core.errors import InputError
from builders.export.export_formats import export
from builders.official import blocks
from builders.official.assembly import build_from_archives
from builders.official.numbered import NumberedIds, as_keys
from builders.sources.archives import read_archives
from builders.store.reader import open_release

QUESTIONS = list(TRAIN)


def convert(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """Build the release ``folder/release`` from files in ``folder/in``. Return ``official`` of its stats."""
    shutil.rmtree(folder / "in", ignore_errors=True)
    return build_from_archives([made.write_files(folder / "in", files)], folder / "release")["official"]


def check_round_trip(folder: Path) -> None:
    for name in ("out", "again"):
        shutil.rmtree(folder / name, ignore_errors=True)
    export(open_release(folder / "release"), "official", folder / "out")
    build_from_archives([folder / "out"], folder / "again")
    assert tables(folder / "again") == tables(folder / "release")


def test_the_preprocessed_release_brings_its_negatives_and_the_top_50(tmp_path: Path) -> None:
    found = convert(tmp_path, preprocessed_files())
    rows = tables(tmp_path / "release")
    train = {row["query"]: row for row in rows["train", "train"]}
    # Negatives of dual.train.tsv, each once, then of cross.train.tsv.
    assert [p["text"] for p in train[QUESTIONS[0]]["negative_passages"]] == [PASSAGES[n] for n in (7, 9, 6)]
    assert [p["docid"] for p in train[QUESTIONS[1]]["negative_passages"]] == [md5(PASSAGES[n]) for n in (8, 11, 7)]
    assert [p["text"] for p in train[QUESTIONS[0]]["positive_passages"]] == [PASSAGES[0]]
    assert [row["_id"] for row in rows["corpus", "corpus"]] == [md5(p) for p in PASSAGES]
    assert found["files"][f"{PREPROCESSED}/train/dual.train.tsv"] == len(made.DUAL)
    trec = tmp_path / "release/runs/official-dev-top50.trec"
    first, ranked = md5(next(iter(DEV))), enumerate((4, 7, 9), 1)
    expected = [f"{first} Q0 {md5(PASSAGES[n])} {rank} {4 - rank} official-dual-encoder" for rank, n in ranked]
    assert trec.read_text().splitlines()[:3] == expected
    export(open_release(tmp_path / "release"), "trec", tmp_path / "trec")
    assert (tmp_path / "trec/runs" / trec.name).read_bytes() == trec.read_bytes()
    # The file of texts gives the same run without the file of ids.
    convert(tmp_path / "half", {name: text for name, text in preprocessed_files().items() if "id_map" not in name})
    assert (tmp_path / "half/release/runs" / trec.name).read_bytes() == trec.read_bytes()


def test_real_rows_of_the_preprocessed_release(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "dureader-retrieval-samples"
    cross = (folder / "cross.train.tsv").read_text(encoding="utf-8")
    queries = (folder / "dureader.q").read_text(encoding="utf-8")
    found = convert(tmp_path, {"dev/dev.q.format": queries, "train/cross.train.tsv": cross})
    assert set(found["files"].values()) == {100}
    train = tables(tmp_path / "release")["train", "train"]
    pairs: dict[str, set[tuple[str, str]]] = {"1": set(), "0": set()}
    for line in cross.splitlines():
        asked, _, passage, label = line.split("\t")
        pairs[label].add((asked, passage))
    assert {(r["query"], p["text"]) for r in train for p in r["positive_passages"]} == pairs["1"]
    negatives = sorted((r["query"], p["text"]) for r in train for p in r["negative_passages"])
    assert negatives == sorted(pairs["0"] - pairs["1"])
    check_round_trip(tmp_path)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.sampled_from(sorted(BOTH)), min_size=1) | st.just({*BOTH}),
    form=st.sampled_from(["folder", "w", "w:gz"]),
    block=st.sampled_from([8 << 20, 300, 40]),
    style=st.sampled_from([{}, {"ensure_ascii": True}, {"ensure_ascii": True, "separators": (",", ":")}]),
    backwards=st.booleans(),
    wrapped=st.sampled_from([None, 2, 4]) | st.none(),
)
def test_any_part_in_any_form_survives_a_release_and_an_export(
    tmp_path: Path, names: set[str], form: str, block: int, style: dict[str, Any], backwards: bool, wrapped: int | None
) -> None:
    files = {name: text for name, text in (BOTH | original_files(**style)).items() if name in names}
    if backwards:  # in reverse order, without a final line end
        ends = (name for name in files if name.endswith(("json", "dual.train.tsv")) and "map" not in name)
        files |= {name: "\n".join(reversed(files[name].splitlines())) for name in ends}
    if wrapped and (collection := f"{ORIGINAL}/passage_collection.json") in files:
        rows = [json.loads(line) for line in files[collection].splitlines()]
        files[collection] = json.dumps({"data": rows}, indent=wrapped)
    for name in ("in", "release"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    source = made.write_files(tmp_path / "in", files)
    if form != "folder":
        source = made.write_tar(tmp_path / "archive", files, tmp_path / "scratch", form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        if not any(name.endswith(("json", "tsv", "format")) or "part-" in name for name in files):
            return  # a readme and a licence
        build_from_archives([source], tmp_path / "release")
    if open_release(tmp_path / "release").splits():  # the map or the top 50 by themselves have no split
        check_round_trip(tmp_path)


def test_the_exported_files_are_in_the_published_style(tmp_path: Path) -> None:
    convert(tmp_path, BOTH)
    check_round_trip(tmp_path)
    for name in ("train.json", "dev.json", "passage_collection.json"):
        assert (tmp_path / "out" / ORIGINAL / name).read_text(encoding="utf-8") == BOTH[f"{ORIGINAL}/{name}"]
    dual, cross = (
        (tmp_path / "out" / PREPROCESSED / f"train/{name}.train.tsv").read_text(encoding="utf-8").splitlines()
        for name in ("dual", "cross")
    )
    texts = {
        row["query"]: [[each["text"] for each in row[f"{kind}_passages"]] for kind in ("positive", "negative")]
        for row in tables(tmp_path / "release")["train", "train"]
    }
    assert dual == [f"{q}\t\t{own[0]}\t\t{other}\t0" for q, (own, others) in texts.items() for other in others]
    assert cross == [
        f"{q}\t\t{text}\t{label}"
        for q, both in texts.items()
        for label, each in zip("10", both, strict=True)
        for text in each
    ]


def test_tabs_and_line_ends_become_spaces_in_the_tsvs_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train, cross = f"{ORIGINAL}/train.json", f"{PREPROCESSED}/train/cross.train.tsv"
    rows = [made.question("问\t题", ["答\n案"]), made.question("问题", ["答案", "答\r案"])]
    convert(tmp_path, {train: made.lines(rows), cross: "问题\t\t答案\t1\n问题\t\t别的\t0\n"})
    export(open_release(tmp_path / "release"), "official", tmp_path / "out")
    assert (tmp_path / "out" / train).read_text(encoding="utf-8").count("\\") == 3
    written = (tmp_path / "out" / cross).read_bytes().decode()
    assert written.splitlines() == ["问 题\t\t答 案\t1", "问题\t\t答案\t1", "问题\t\t答 案\t1", "问题\t\t别的\t0"]
    assert "cross.train.tsv: replaced tabs and line ends by spaces in 2 of 4 lines" in caplog.text


PARTS, MAP = f"{PREPROCESSED}/passage-collection/part-0", f"{PREPROCESSED}/passage-collection/passage2id.map.json"
DUAL_TSV = f"{PREPROCESSED}/train/dual.train.tsv"
MORE = "".join(
    f"{asked}\t\t{PASSAGES[own]}\t\t{PASSAGES[other]}\t0\n"
    for asked, own, other in ((QUESTIONS[0], 5, 10), (QUESTIONS[0], 0, 5), ("没有的问题", 5, 10))
)
NO_DEV = {name: text for name, text in preprocessed_files().items() if "dev" not in name and "auxiliary" not in name}


@pytest.mark.parametrize(
    ("case", "files", "name", "edit", "found"),
    [
        (
            "text",
            preprocessed_files(),
            f"{PARTS}1",
            lambda text: text.replace(PASSAGES[4], PASSAGES[4] + "改"),  # simulates a text that was cleaned for the TSV
            {"passages whose id is not the MD5": 1, "text differs from the collection": 1},
        ),
        (
            "dual",
            BOTH,
            DUAL_TSV,
            lambda text: text + MORE,
            {
                "positives of the TSVs that train.json does not judge": 1,
                "negatives of the TSVs that are positives": 1,
                "questions of the TSVs": 1,
            },
        ),
        # Without the first part, line numbers are useless, so MD5s are the ids.
        ("part", {name: text for name, text in preprocessed_files().items() if "part-00" not in name}, MAP, str, {}),
        (
            "ids",
            NO_DEV,
            MAP,
            lambda text: text.replace(md5(PASSAGES[0]), "0" * 32).replace(md5(PASSAGES[7]), "f" * 32),
            {"passages whose id is not the MD5": 2},
        ),
    ],
)
def test_what_disagrees_is_counted_and_the_archives_ids_are_kept(
    tmp_path: Path, case: str, files: dict[str, str], name: str, edit: Any, found: dict[str, int]
) -> None:
    read = convert(tmp_path, files | {name: edit(files[name])})
    for part, times in found.items():
        assert sum(count for what, count in read["findings"].items() if part in what) == times, part
    check_round_trip(tmp_path)
    rows = tables(tmp_path / "release")
    train, expected = rows["train", "train"][0], [*map(md5, PASSAGES)]
    if case == "text":
        assert rows["corpus", "corpus"][4]["text"] == PASSAGES[4] + "改"
        assert read["examples"]["passages whose id is not the MD5 of their text"] == [md5(PASSAGES[4])]
    elif case == "ids":
        expected[0], expected[7] = "0" * 32, "f" * 32
        assert (train["positive_passages"][0]["docid"], train["negative_passages"][0]["docid"]) == ("0" * 32, "f" * 32)
        assert rows["qrels", "train"][0]["corpus-id"] == "0" * 32
    elif case == "dual":
        assert [p["text"] for p in train["positive_passages"]] == [PASSAGES[0]]
        assert PASSAGES[5] not in [p["text"] for p in train["negative_passages"]]
    assert [row["_id"] for row in rows["corpus", "corpus"]] == expected[3 if case == "part" else 0 :]
    judged = {row["corpus-id"] for (config, _), found in rows.items() if config == "qrels" for row in found}
    assert case == "part" or judged <= {*expected}  # every judged passage is in the corpus


@given(st.lists(st.lists(st.integers(0, 300), max_size=50), max_size=12), st.lists(st.integers(0, 600), max_size=50))
def test_ids_are_numbered_as_they_come(portions: list[list[int]], asked: list[int]) -> None:
    table, expected = NumberedIds(), {}  # type: ignore[var-annotated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            NumberedIds, "_resize", lambda self, size, resize=NumberedIds._resize: resize(self, min(size, 1 << 11))
        )
        table._resize(4)  # small, so that the table must grow
        for portion in portions:
            numbers, fresh = table.add(as_keys(b"".join(value.to_bytes(16, "big") for value in portion)))
            for value, number, new in zip(portion, numbers, fresh, strict=True):
                assert new == (value not in expected)
                assert number == expected.setdefault(value, len(expected))
    assert table.keys().tobytes() == b"".join(value.to_bytes(16, "big") for value in expected)
    found = table.find(as_keys(b"".join(value.to_bytes(16, "big") for value in asked)))
    assert found.tolist() == [expected.get(value, -1) for value in asked]


def test_the_list_names_addresses_checksums_and_what_is_got_by_hand() -> None:
    printed = run("builders", "official", "--list").stdout
    assert "  from     https://dataset-bj.cdn.bcebos.com/dureader/dureader_raw.zip\n" in printed
    assert "  md5      dc7658b8cdf4f94b8714d130b7d15196\n  sha256   unknown\n" in printed
    assert printed.count("\n\n") == len(read_archives()) - 1
    found = run("builders", "official", "--list", "datafountain-424").stdout
    assert "  by hand  register for competition 424 on DataFountain" in found


def test_a_map_is_not_used_with_two_parts_of_the_same_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    convert(tmp_path, {f"one/{MAP}": BOTH[MAP], "one/part-00": BOTH[f"{PARTS}0"], "two/part-00": BOTH[f"{PARTS}1"]})
    assert "ids are MD5s, because the map needs each of the parts 00, 01 ... once; found 00, 00" in caplog.text


@pytest.mark.parametrize("block", [8 << 20, 60])
def test_an_error_names_the_line_of_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    entries = [f'"{number}": "{md5(text)}"' for number, text in enumerate(PASSAGES)]
    entries[8] = '"8": "wrong"'
    with pytest.raises(InputError, match=r"map\.json:10: expected pairs .* found '\"8\": \"wrong\"'"):
        convert(tmp_path, {MAP: "{\n " + ",\n ".join(entries) + "\n}\n"})
