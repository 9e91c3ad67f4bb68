"""Official archives that do not agree with themselves: what is counted, what is kept, and that all comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from official_archives import BOTH, ORIGINAL, PASSAGES, PREPROCESSED, TRAIN, md5, original_files, preprocessed_files
from official_release import check_round_trip, convert, tables, without

QUESTION = next(iter(TRAIN))
PARTS, MAP = f"{PREPROCESSED}/passage-collection/part-0", f"{PREPROCESSED}/passage-collection/passage2id.map.json"
DUAL = f"{PREPROCESSED}/train/dual.train.tsv"
COLLECTION = f"{ORIGINAL}/passage_collection.json"
NINTH = json.dumps({"paragraph_id": md5(PASSAGES[9]), "paragraph_text": PASSAGES[9]}, ensure_ascii=False) + "\n"
SHORT_MAP = json.dumps({str(n): md5(p) for n, p in enumerate(PASSAGES[:10])} | {"30": "0" * 32})
MORE = f"{QUESTION}\t\t{PASSAGES[5]}\t\t{PASSAGES[10]}\t0\n{QUESTION}\t\t{PASSAGES[0]}\t\t{PASSAGES[5]}\t0\n"
MORE += f"没有的问题\t\t{PASSAGES[5]}\t\t{PASSAGES[10]}\t0\n"


@pytest.mark.parametrize(
    ("files", "name", "edit", "found"),
    [
        (
            preprocessed_files(),
            f"{PARTS}1",
            lambda text: text.replace(PASSAGES[4], PASSAGES[4] + "改"),  # as if it had been cleaned for the TSV
            {"passages whose id is not the MD5": 1, "text is not the collection's": 1},
        ),
        (
            preprocessed_files(),
            MAP,
            lambda _: SHORT_MAP,
            {"lines without an entry": 2, "lines that no part holds": 19, "out of order": 1},
        ),
        (
            original_files(),
            COLLECTION,
            lambda text: text.replace(NINTH, ""),
            {"judgments of dev whose passage the collection lacks": 1},
        ),
        (
            BOTH,
            DUAL,
            lambda text: text + MORE,
            {
                "positives of the TSVs that train.json does not judge": 1,
                "negatives of the TSVs that are positives": 1,
                "questions of the TSVs": 1,
            },
        ),
        (without(preprocessed_files(), "part-00"), MAP, str, {}),  # line numbers are useless: MD5s are ids
        (
            without(preprocessed_files(), "dev", "auxiliary"),
            MAP,
            lambda text: text.replace(md5(PASSAGES[0]), "0" * 32).replace(md5(PASSAGES[7]), "f" * 32),
            {"passages whose id is not the MD5": 2},
        ),
    ],
    ids=["text", "map", "collection", "dual", "part", "ids"],
)
def test_what_disagrees_is_counted_and_the_archives_ids_are_kept(
    tmp_path: Path, files: dict[str, str], name: str, edit: Any, found: dict[str, int], request: pytest.FixtureRequest
) -> None:
    read = convert(tmp_path, files | {name: edit(files[name])})
    for part, times in found.items():
        assert sum(count for what, count in read["findings"].items() if part in what) == times, part
    check_round_trip(tmp_path)
    rows = tables(tmp_path / "release")
    case = request.node.callspec.id
    ids = {row["_id"]: row["text"] for row in rows["corpus", "corpus"]}
    expected = [*map(md5, PASSAGES)]
    if case == "text":
        assert ids[md5(PASSAGES[4])] == PASSAGES[4] + "改"
        assert md5(PASSAGES[4]) in read["examples"]["passages whose id is not the MD5 of their text"][0]
    elif case == "ids":
        expected[0], expected[7] = "0" * 32, "f" * 32
        assert rows["train", "train"][0]["positive_passages"][0]["docid"] == "0" * 32
        assert rows["train", "train"][0]["negative_passages"][0]["docid"] == "f" * 32
        assert rows["qrels", "train"][0]["corpus-id"] == "0" * 32
    elif case == "collection":
        del expected[9]
        assert len(rows["dev", "dev"][0]["positive_passages"]) == 2
    elif case == "dual":
        assert [p["text"] for p in rows["train", "train"][0]["positive_passages"]] == [PASSAGES[0]]
        assert PASSAGES[5] not in [p["text"] for p in rows["train", "train"][0]["negative_passages"]]
    assert list(ids) == expected[3 if case == "part" else 0 :]
    judged = {row["corpus-id"] for (config, _), found in rows.items() if config == "qrels" for row in found}
    assert case == "part" or judged <= {*ids}  # no judgment names a passage that is not there
