"""``bundle`` and ``verify``: a run with all that its figures can be checked by, and what is refused."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.store.runs import write_run

Change = Callable[[dict[str, bytes]], None]


@pytest.fixture()
def world(tmp_path: Path) -> Path:
    """A release, a run of its two dev questions (the first answered at rank 2), its bundle."""
    make_release(tmp_path / "release", tables())
    first, second = map(md5, QUESTIONS["dev"])
    ids = [md5(text) for text in TEXTS]
    hits = [(first, [(ids[0], 3.0), (ids[4], 2.0)]), (second, [(ids[5], 1.5), (ids[1], 1.0)])]
    write_run(tmp_path / "some.run.gz", hits)
    pack(tmp_path)
    return tmp_path


def pack(folder: Path, *words: object, out: str = "bundle.zip") -> str:
    given = ["--release", folder / "release", "--split", "dev", folder / "some.run.gz", "--out", folder / out]
    return run("baselines", "bundle", "--quiet", *given, *words).stdout


def verified(folder: Path, *words: object, code: int = 0) -> dict[str, tuple[Any, ...]]:
    """By measure: stated, recomputed, queries that differ, the mark."""
    done = run("baselines", "verify", folder / "bundle.zip", "--format", "json", *words, code=code)
    return {row.pop("measure"): tuple(row.values()) for row in json.loads(done.stdout)["rows"]}


def change(path: Path, what: Change, *, mend: bool = True) -> None:
    """Change the files of a bundle; with ``mend`` its manifest lists them as they are then."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    what(content)
    if mend:
        manifest = json.loads(content["manifest.json"])
        manifest["files"] = [
            {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content.items()
            if name != "manifest.json"
        ]
        content["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def figure(name: str, value: float) -> Change:
    def changed(content: dict[str, bytes]) -> None:
        manifest = json.loads(content["manifest.json"])
        manifest["figures"][name] = value
        content["manifest.json"] = json.dumps(manifest).encode()

    return changed


def replaced(name: str, old: str, new: str) -> Change:
    def changed(content: dict[str, bytes]) -> None:
        assert old.encode() in content[name]
        content[name] = content[name].replace(old.encode(), new.encode())

    return changed


def test_a_bundle_is_verified_against_its_release(world: Path) -> None:
    rows = verified(world, "--release", world / "release")
    assert rows["MRR@10"] == (0.75, 0.75, 0, "OK")  # ranks 2 and 1, by hand
    assert rows["recall@1"] == (0.5, 0.5, 0, "OK")
    assert rows["QueriesRanked"] == (2, 2, None, "OK")
    assert {row[-1] for row in rows.values()} == {"OK"} and len(rows) == 12


def test_without_a_release_the_means_are_recomputed(world: Path) -> None:
    rows = verified(world)
    assert {row[-1] for row in rows.values()} == {"OK"}
    change(world / "bundle.zip", figure("nDCG@10", 0.9))
    stated, recomputed, differ, mark = verified(world, code=1)["nDCG@10"]
    assert (stated, differ, mark) == (0.9, 0, "off")
    assert recomputed == pytest.approx((1 + 1 / 1.584962500721156) / 2)  # 1 / log2(3) at rank 2


def test_a_bundle_holds_what_it_says(world: Path) -> None:
    with zipfile.ZipFile(world / "bundle.zip") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(content.pop("manifest.json"))
    listed = {file["path"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    assert listed == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()}
    assert {"run.trec", "per-query.jsonl", "made-by.json", "environment.json"} == content.keys()
    values = [json.loads(line) for line in content["per-query.jsonl"].splitlines()]
    assert [each["query_id"] for each in values] == [md5(question) for question in QUESTIONS["dev"]]
    assert [each["values"]["RR@10"] for each in values] == [0.5, 1.0]
    release = json.loads((world / "release" / "manifest.json").read_text())
    (shard,) = [file["sha256"] for file in release["files"] if file["path"].startswith("qrels/dev")]
    assert manifest["release"]["qrels/dev"] == hashlib.sha256(shard.encode()).hexdigest()
    assert json.loads(content["environment.json"])["packages"]["numpy"]
    assert str(world).encode() not in b"".join(content.values())


def test_the_same_run_gives_the_same_bundle_and_its_sha256_is_printed(world: Path) -> None:
    printed = pack(world, out="again.zip")
    whole = (world / "again.zip").read_bytes()
    assert whole == (world / "bundle.zip").read_bytes()
    assert printed == f"{hashlib.sha256(whole).hexdigest()}  {world / 'again.zip'}\n"
    verified(world, "--sha256", hashlib.sha256(whole).hexdigest().upper())
    error = run("baselines", "verify", world / "bundle.zip", "--sha256", "0" * 64, code=1).error
    assert "it is another bundle" in error


def test_commands_and_recipes_behind_a_run_are_found_without_paths_of_the_machine(world: Path) -> None:
    """As `reproduce` leaves them: a re-ranked run, by a model that was started from another one's checkpoint."""
    first, models = world / "first.run.gz", world / "models"
    commands = {
        first: ["baselines", "bm25", "--release", "R", "--out", str(first)],
        models / "ce-bm25-neg": ["baselines", "train", "ce-bm25-neg", "--set", f"model.start={world.parent / 'start'}"],
        models / "ce-de-neg": ["baselines", "train", "ce-de-neg"],  # whose recipe starts from the one before
        world / "some.run.gz": ["baselines", "rerank", "--run", str(first), "--model", str(models / "ce-de-neg")],
    }
    models.mkdir()
    for output, command in commands.items():
        command += ["--out", str(output)] if "--out" not in command else []
        output.with_name(f".{output.name}.step.json").write_text(json.dumps({"key": "0", "command": command}))
    for name in ("ce-bm25-neg", "ce-de-neg"):
        (models / name).mkdir()
        (models / name / "recipe.json").write_text(json.dumps({"model": {"start": str(world / "start")}}))
    pack(world)
    report = json.loads(run("baselines", "verify", world / "bundle.zip", "--format", "json").stdout)
    assert report["models"] == ["ce-bm25-neg", "ce-de-neg"]
    assert [" ".join(words) for words in report["made_by"]] == [
        "baselines bm25 --release R --out first.run.gz",
        "baselines train ce-bm25-neg --set model.start=start --out models/ce-bm25-neg",
        "baselines train ce-de-neg --out models/ce-de-neg",
        "baselines rerank --run first.run.gz --model models/ce-de-neg --out some.run.gz",
    ]
    with zipfile.ZipFile(world / "bundle.zip") as archive:
        assert json.loads(archive.read("models/ce-de-neg/recipe.json")) == {"model": {"start": "start"}}


def test_official_predictions_can_be_packed(world: Path) -> None:
    found = {md5(question): [md5(TEXTS[4]), md5(TEXTS[5])] for question in QUESTIONS["dev"]}
    predictions = world / "predictions.json"
    predictions.write_text(json.dumps(found))
    given = ["--release", world / "release", predictions, "--out", world / "bundle.zip"]
    run("baselines", "bundle", "--quiet", *given)
    assert verified(world, "--release", world / "release")["MRR@10"] == (0.75, 0.75, 0, "OK")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (replaced("run.trec", " 3.0 ", " 1.0 "), "run.trec is not what its manifest lists"),
        (lambda content: content.update({"extra.bin": b"x"}), "extra.bin, which its manifest does not list"),
        (lambda content: content.pop("environment.json"), "environment.json, which its manifest lists, and is missing"),
        (lambda content: content.pop("manifest.json"), "is no bundle"),
    ],
)
def test_a_tampered_bundle_is_refused(world: Path, what: Change, error: str) -> None:
    change(world / "bundle.zip", what, mend=False)
    assert error in run("baselines", "verify", world / "bundle.zip", code=1).error


@pytest.mark.parametrize(
    ("what", "measure"),
    [
        (replaced("run.trec", " 3.0 ", " 1.0 "), "MRR@10"),  # the answer moves to rank 1
        (replaced("per-query.jsonl", '"R@10":1.0', '"R@10":0.5'), "R@10"),
        (figure("Success@5", 0.5), "Success@5"),
        (figure("QueriesRanked", 3), "QueriesRanked"),
    ],
)
def test_a_forged_bundle_whose_manifest_was_made_anew_is_off(world: Path, what: Change, measure: str) -> None:
    change(world / "bundle.zip", what)
    done = run("baselines", "verify", world / "bundle.zip", "--release", world / "release", code=1)
    assert "figures are off" in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{measure} ")]
    assert line.endswith("off")


def test_a_figure_of_another_rounding_is_close(world: Path) -> None:
    change(world / "bundle.zip", figure("MRR@10", 0.7503))
    assert verified(world, "--release", world / "release")["MRR@10"] == (0.7503, 0.75, 0, "close")


def test_another_release_is_refused(world: Path) -> None:
    rows = tables()
    rows["qrels", "dev"][0]["corpus-id"] = md5(TEXTS[0])
    make_release(world / "other", rows)
    error = run("baselines", "verify", world / "bundle.zip", "--release", world / "other", code=1).error
    assert error.endswith("qrels/dev differ")


@pytest.mark.parametrize("name", ["../outside", "/tmp/x", "models/../../x/recipe.json", "run.trec.exe"])
def test_names_that_no_bundle_has_are_refused(world: Path, name: str) -> None:
    change(world / "bundle.zip", lambda content: content.update({name: b"x"}))
    error = run("baselines", "verify", world / "bundle.zip", code=1).error
    assert "which no bundle holds" in error or "expected a plain one" in error


@pytest.mark.parametrize(
    "what",
    [
        replaced("manifest.json", '"queries": ""', '"queries": "../dev"'),
        replaced("manifest.json", '"set": "main"', '"set": "none"'),
        figure("MRR@10", 1e300),
        replaced("per-query.jsonl", '"R@10":1.0', '"R@10":1e308'),
        replaced("per-query.jsonl", '"first_positive_rank":1', '"first_positive_rank":0'),
    ],
)
def test_a_forged_bundle_of_what_cannot_be_is_refused(world: Path, what: Change) -> None:
    change(world / "bundle.zip", what)
    assert "bundle.zip!" in run("baselines", "verify", world / "bundle.zip", code=1).error


def test_an_archive_that_would_fill_the_memory_is_refused_unread(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from baselines.bundle import packed

    monkeypatch.setattr(packed, "LARGEST", 1 << 20)
    change(world / "bundle.zip", lambda content: content.update({"run.trec": b"\n" * (2 << 20)}))
    assert (world / "bundle.zip").stat().st_size < 4 << 20
    assert "that is no bundle's" in run("baselines", "verify", world / "bundle.zip", code=1).error


def test_what_is_no_bundle_is_one_line(world: Path) -> None:
    for path in (world / "some.run.gz", world / "release", world / "nothing"):
        assert str(path) in run("baselines", "verify", path, code=1).error


def test_a_model_without_a_recipe_is_refused(world: Path) -> None:
    given = ["--release", world / "release", world / "some.run.gz", "--out", world / "x.zip", "--model", world]
    assert "not a checkpoint" in run("baselines", "bundle", *given, code=1).error
