"""Groups of outputs that depend on no model: each function runs some verbs and returns the rows that they write."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotating import annotate, judge
from commands import SAMPLE, run
from conftest import Once
from golden_rows import Outputs, chance, export, json_rows, printed, release, rounded, scored, table, trec, within
from official_archives import BOTH, DEV, PASSAGES, TRAIN, write_files
from releases import TEXTS, make_release, raw_row, tables, write_rows

# Every setting of a BM25 run is explicit, so that other defaults of the verb leave these outputs as they are.
BM25_SETTINGS = {"--analyzer": "words", "--stop-words": "keep", "--k1": 1.2, "--b": 0.75}


def bm25_options(**changes: object) -> list[object]:
    """Return the settings of a BM25 run as words of a command. ``changes``: other values, as in ``stop_words="drop"``.

    An option with the value None is left out.
    """
    settings = BM25_SETTINGS | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    words: list[object] = []
    for option, value in settings.items():
        if value is not None:
            words += [option, value]
    return words


@dataclass
class World:
    """Outputs that the groups share (releases, runs of BM25 and negatives), each created once."""

    once: Once
    get: Callable[[str], Path]
    out: Path

    @property
    def sample(self) -> Path:
        return self.get("sample_release")

    def runs(self, of: str = "sample_release") -> Path:
        """Write runs of dev (words, bigrams) and of train, and negatives mined from the train run."""

        def make(folder: Path) -> None:
            folder.mkdir()
            words = ("bm25", "--quiet", "--release", self.get(of), "--index", folder / "index", "--out")
            run("baselines", *words, folder / "dev.run.gz", *bm25_options())
            if of == "sample_release":
                bigrams = bm25_options(analyzer="bigrams", stop_words="drop")
                run("baselines", *words, folder / "bigrams.run.gz", *bigrams)
                run("baselines", *words, folder / "train.run.gz", "--split", "train", *bm25_options())
                mined = ("--split", "train", "--run", folder / "train.run.gz", "--out", folder / "negatives.jsonl.gz")
                run("baselines", "mine", "--quiet", "--release", self.sample, *mined)

        return self.once(f"golden-{of}", make)

    def dev(self) -> tuple[object, ...]:
        return ("--release", self.sample, self.runs() / "dev.run.gz", self.runs() / "bigrams.run.gz")

    def made(self, *words: object) -> tuple[Path, Outputs]:
        """Run a verb of builders, and return the rows of its release and its printed output."""
        out = self.out / f"release-{len(list(self.out.iterdir()))}"
        return out, {"printed": printed("builders", *words, "--out", out)} | release(out)


def checked(path: Path) -> Outputs:
    tests = json.loads(run("builders", "check", "--release", path, "--format", "json", code=None).stdout)["tests"]
    found = [[t["test"], t["level"], t["count"], [[f["where"], f["count"]] for f in t["findings"]]] for t in tests]
    return {"check": sorted(found)}


def releases(world: World) -> Outputs:
    found = within("sample", release(world.sample)) | checked(world.sample)
    found["stats"] = [printed("builders", "check", "--release", world.sample)[0]["release"]]
    for name, options in (("char", ["--unit", "char"]), ("best", ["--match", "best"]), ("64", ["--min-chars", 64])):
        found |= within(name, world.made("release", "--raw", SAMPLE, *options)[1])
    rows = tables([*TEXTS, "\ufffd字", "\x00字", "长" * 60_000])
    rows["corpus", "corpus"] += [rows["corpus", "corpus"][0], {"_id": "0" * 32, "title": "", "text": " "}]
    rows["qrels", "dev"] += [rows["qrels", "dev"][0], {"query-id": "1" * 32, "corpus-id": "2" * 32, "score": 1}]
    rows["train", "train"][1]["positive_passages"] = rows["qrels", "train"][2:3] = []
    rows["queries", "dev"] += rows["queries", "train"][:1]
    return found | within("spoiled", checked(make_release(world.out / "spoiled", rows)))


def demo(world: World) -> Outputs:
    path = world.get("demo_release")
    folder = world.runs("demo_release")
    mined = ("--split", "dev", "--run", folder / "dev.run.gz", "--out", world.out / "negatives.jsonl")
    run("baselines", "mine", "--quiet", "--release", path, *mined)
    found = {"dev.run": trec(folder / "dev.run.gz"), "negatives": json_rows(world.out / "negatives.jsonl")}
    measured = ("evaluate", "--release", path, folder / "dev.run.gz")
    found["evaluate"] = printed("baselines", *measured)
    found["by"] = printed("baselines", *measured, "--by", "question_type", "--answers")
    words = ("--format", "rag", "--top-k", 5, "--run", folder / "dev.run.gz", "--out", world.out / "rag")
    run("builders", "export", "--quiet", "--release", path, *words)
    found |= within("rag", export(world.out / "rag"))
    return within("release", release(path)) | checked(path) | found


def bm25(world: World) -> Outputs:
    found: Outputs = {name: trec(world.runs() / f"{name}.run.gz") for name in ("dev", "bigrams", "train")}
    for name, options in {
        "characters": ["--split", "test", "--top-k", 20, *bm25_options(analyzer="characters")],
        "both": ["--max-chars", 100, *bm25_options(analyzer="both", k1=0.9, b=0.4)],
        "tuned": ["--tune", "train", *bm25_options(k1=None, b=None)],
    }.items():
        out = world.out / f"{name}.run"
        words = ("bm25", "--quiet", "--release", world.sample, "--index", world.runs() / "index", "--out", out)
        run("baselines", *words, *options)
        found[name] = trec(out)
    return found | {"tuned.json": [rounded(json.loads((world.out / "tuned.run.tuned.json").read_text()), 4)]}


def mine(world: World) -> Outputs:
    found = {"negatives": json_rows(world.runs() / "negatives.jsonl.gz")}
    for name, options in {"seed": ["--seed", 1, "--negatives", 6], "margin": ["--relative-margin", 0.1]}.items():
        out = world.out / f"{name}.jsonl"
        words = ("--split", "train", "--run", world.runs() / "train.run.gz", "--out", out)
        run("baselines", "mine", "--quiet", "--release", world.sample, *words, *options)
        found[name] = json_rows(out)
    return found


def measured(world: World) -> Outputs:
    found: Outputs = {}
    for name, words in {
        "evaluate": ["evaluate", *world.dev()],
        "holes": ["errors", "holes", *world.dev()],
        "duplicates": ["errors", "duplicates", *world.dev()],
        "compare": ["compare", *world.dev()],
    }.items():
        found[name] = printed("baselines", *words)
    for name, options in {"rrf": [], "weighted": ["--method", "weighted", "--tune", "dev", "--tune-on-these"]}.items():
        tuned = [*world.dev()[:2], "--tune-runs", *world.dev()[2:]] if options else []
        run("baselines", "fuse", "--quiet", *world.dev()[2:], *options, *tuned, "--out", world.out / f"{name}.run")
        found[name] = trec(world.out / f"{name}.run")
    run("baselines", "errors", "draw", "--quiet", *world.dev()[:3], "--sample", 5, "--round", world.out / "errors")
    found["errors"] = [(row["query-id"], row["corpus-id"]) for row in table(world.out / "errors/packages/dev-001.csv")]
    words = ["--release", world.sample, "--table", 4, "--row", "bm25", "--one-process", "--out", world.out / "tables"]
    rows = printed("baselines", "reproduce", *words)[0]["rows"]
    found["reproduce"] = [[row[key] for key in ("metric", "ours", "interval", "published", "mark")] for row in rows]
    boards = printed("baselines", "reproduce", *world.dev()[:2], "--leaderboard", *world.dev()[2:])[0]["tables"]
    found["leaderboard"] = [
        [board["searched"], each["model"], each["figures"]] for board in boards for each in board["models"]
    ]
    return found


def exports(world: World) -> Outputs:
    found: Outputs = {}
    mined = ["--negatives", world.runs() / "negatives.jsonl.gz"]
    runs = ["--run", *world.dev()[2:]]
    for form, more in {
        **{"beir": runs, "trec": runs, "official": runs, "msmarco": [], "tevatron": mined, "flagembedding": mined},
        **{"rag": runs, "triplets": mined, "pylate": mined, "sentence-transformers": mined},
    }.items():
        out = world.out / form
        run("builders", "export", "--quiet", "--release", world.sample, "--format", form, "--out", out, *more)
        found |= within(form, export(out))
    return found | within("copy", world.made("official", "--copy", world.out / "tevatron" / "dev.jsonl")[1])


def sets(world: World) -> Outputs:
    source = world.out / "source"
    source.mkdir()
    for name, text in {
        "question.csv": "question_id,content\n" + "".join(f"{n},{n % 5}号疼怎么办\n" for n in range(1, 8)),
        "answer.csv": "ans_id,question_id,content\n" + "".join(f"{n},{n // 10},休息{n % 9}天\n" for n in range(10, 80)),
        "dev_candidates.txt": "question_id,ans_id,cnt,label\n1,10,0,1\n1,11,1,0\n6,60,0,1\n2,99,0,1\n2,21,0,1\n",
        "test_candidates.txt": "question_id,ans_id,cnt,label\n3,30,0,1\n3,11,1,0\n",
        "train_candidates.txt": "question_id,pos_ans_id,neg_ans_id\n4,40,11\n4,41,12\n",
        "NCPPolicies_context.csv": "docid\ttext\n" + "".join(f"d{n}\t第{n % 8}号通知。\n" for n in range(10)),
        "NCPPolicies_train.csv": "id\tdocid\tquestion\tanswer\n"
        + "".join(f"{n}\td{n % 11}\t第{n % 17}问是什么？\t略\n" for n in range(20)),
    }.items():
        (source / name).write_text(text, encoding="utf-8")
    medical, news = [source / n for n in ("question.csv", "answer.csv")], [*source.glob("NCP*")]
    medical += source.glob("*_candidates.txt")
    path, found = world.made("add", "cmedqa", "--source", *medical, "--release", world.sample)
    found = within("cmedqa", found)
    given = ("--source", *sorted(news), "--test-size", 4, "--seed", 3)
    path, more = world.made("add", "ccovid", *given, "--release", path)
    found |= within("ccovid", more)
    queries = [row for split in ("train", "dev") for row in release(world.sample)[f"queries/{split}"]]
    translations = [f'{row["_id"]}\t"Question {n % 30}, in English"\n' for n, row in enumerate(queries)]
    (source / "translations.tsv").write_text("".join(translations))
    path, more = world.made("add", "crosslingual", "--source", source / "translations.tsv", "--release", path)
    found |= within("crosslingual", more) | checked(path)
    for name, form in (("cmedqa", "trec"), ("crosslingual", "beir"), ("crosslingual", "tevatron")):
        out = world.out / f"{form}-{name}"
        run("builders", "export", "--quiet", "--release", path, "--format", form, "--set", name, "--out", out)
        found |= within(out.name, export(out))
    out = world.out / "bm25.run"
    words = ("--set", "crosslingual", "--index", world.runs() / "index", "--out", out)
    run("baselines", "bm25", "--quiet", "--release", path, *words, *bm25_options())
    return found | {"crosslingual.run": trec(out)}


def translated(world: World) -> Outputs:
    step = ("annotate", "translations")
    sheet, reviews = world.out / "packages.tsv", world.out / "reviews.tsv"
    at = ("--release", world.sample)

    def fill(path: Path, column: str, value: Callable[[int], object]) -> list[dict[str, str]]:
        rows = table(path, "\t")
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
            writer.writeheader()
            writer.writerows({**row, column: value(number)} for number, row in enumerate(rows))
        return rows

    run("builders", *step, "export", *at, "--split", "dev", "--package-size", 10, "--out", sheet)
    found = {"packages": fill(sheet, "english", lambda number: f"Question {number}")}
    run("builders", *step, "review", *at, "--source", sheet, "--pairs", 5, "--out", reviews)
    sheets = [reviews.with_suffix(f".{number}.tsv") for number in (1, 2)]
    found |= {each.name: fill(each, "correct", lambda number: 1) for each in sheets}
    words = ("--source", sheet, "--reviews", *sheets, "--pairs", 5)
    return found | within("import", world.made(*step, "import", *at, *words)[1])


def comprehension(world: World) -> Outputs:
    """Outputs of `squad` and `similar`, with near-duplicates of a dev question and contaminated training pairs."""

    def source(name: str, asked: list[str]) -> Path:
        paragraphs = [{"context": f"第{n // 2}段：{q}的答案。", "qas": [{"question": q}]} for n, q in enumerate(asked)]
        path = world.out / f"{name}.json"
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return path

    dev = [f"从城市{n}坐G1次高铁到北京站要多久" for n in "甲乙丙丁戊己庚辛"]
    near = [dev[0].replace("G", " g") + "？", dev[1] + "呢", dev[2], *(f"怎么做{n}" for n in ("饺子", "米饭", "汤"))]
    (world.out / "news.txt").write_text(
        "".join(f"第{n}条新闻。{'内容，' * n}完。\n" for n in range(0, 200, 20)), "utf-8"
    )
    files = ("--train", source("train", [*near, *(f"别的问题{n}" for n in range(9))]), "--dev", source("dev", dev))
    path, found = world.made("squad", *files, "--passages", world.out / "news.txt", "--cut", "all", "--dev-size", 7)
    similar, more = world.made("similar", "--release", path)
    found = within("squad", found) | within("similar", more) | within("similar", checked(similar))
    pairs = [{"query": q, "pos": [f"第{n // 2}段：{q}的答案。"], "neg": dev[:1]} for n, q in enumerate(dev[::2] + near)]
    (world.out / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    found["contamination"] = printed("builders", "similar", "--release", path, "--against", world.out / "pairs.jsonl")
    return found


def drawn(world: World) -> Outputs:
    hard = ("--hard", world.runs() / "dev.run.gz")
    path, found = world.made("add", "samples", "--release", world.sample, "--sizes", 40, 100, "--seed", 3, *hard)
    found = within("samples", found)
    words = ("--quiet", "--release", path, "--extract", "sample-40-hard", "--out", world.out / "extract")
    run("builders", "add", "samples", *words)
    found |= within("extract", release(world.out / "extract"))
    words = (
        "--quiet",
        "--release",
        world.sample,
        "--nano",
        *hard,
        "--seed",
        3,
        "--extract",
        "--out",
        world.out / "nano",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builders.add.samples.NANO_QUERIES", 10)
        patch.setattr("builders.add.samples.NANO_PASSAGES", 60)
        run("builders", "add", "samples", *words)
    found |= within("nano", release(world.out / "nano"))
    words = ("--sample", "sample-100", "--index", world.runs() / "index", "--out", world.out / "sample.run")
    run("baselines", "bm25", "--quiet", "--release", path, *words, *bm25_options())
    found["sample-100.run"] = trec(world.out / "sample.run")
    ids = [row["_id"] for split in ("train", "dev", "test") for row in release(world.sample)[f"queries/{split}"]]
    vectors = [[byte - 127.5 for byte in bytes.fromhex(each)] for each in ids]
    pq.write_table(pa.table({"_id": ids, "vector": vectors}), world.out / "vectors.parquet")
    given = ("--release", world.sample, "--embeddings", world.out / "vectors.parquet")
    path, more = world.made("add", "restrain", *given, "--size", 5, 10, "--exclude", 1)
    found |= within("restrain", more)
    words = ("--set", "restrain-5-interpolation", "--format", "msmarco", "--out", world.out / "set")
    run("builders", "export", "--quiet", "--release", path, *words)
    found |= within("restrain-5-interpolation", export(world.out / "set"))
    return found | within("resttest", world.made("add", "resttest", *given, "--buckets", 2)[1])


def pooled(world: World) -> Outputs:
    union, pool, round_ = world.out / "union.run", world.out / "pool.jsonl", world.out / "round"
    step = ("builders", "annotate", "pool")
    words = ("--release", world.sample, "--split", "dev", "--runs", *world.dev()[2:], "--depth", 10)
    found = {"candidates": printed(*step, "candidates", *words, "--out", union), "union": trec(union)}
    scores = [scored(union, world.out / name) for name in ("one.run", "two.run")]
    found["select"] = printed(*step, "select", *words, "--scores", *scores, "--out", pool)
    found["pool"] = json_rows(pool)
    words = ("--package-size", 27, "--review-pairs", 10)
    annotate("export", round_, "--pool", pool, "--release", world.sample, *words)

    def label(wrong: float, package: str = "") -> Callable[[dict[str, Any]], int]:
        return lambda row: (
            int(chance(row["query-id"], row["corpus-id"]) < 0.4)
            ^ (row["package"] == package and chance(row["corpus-id"], row["query-id"]) < wrong)
        )

    packages = sorted((round_ / "packages").glob("*.csv"))
    found |= {f"round/{each.stem}": table(each) for each in packages}
    tasks = sorted((round_ / "label-studio").glob("*.json"))
    found |= {f"label-studio/{each.stem}": json.loads(each.read_text("utf-8")) for each in tasks}
    for each in packages:
        judge(round_, "anna", each, label(0.5, "dev-002"))
    annotate("review", round_, "--reviewers", "ben", "carl")
    for each in sorted((round_ / "reviews").rglob("*.csv")):
        found[f"reviews/{each.parent.name}/{each.stem}"] = table(each)
        judge(round_, each.parent.name, each, label(0.1, "dev-001"))
    found["check"] = printed("builders", "annotate", "check", "--round", round_)
    for package in found["check"][0]["packages"]:
        del package["why"]  # a message
    annotate("adjudicate", round_)
    for each in sorted((round_ / "adjudication").glob("*.csv")):
        found[f"adjudication/{each.stem}"] = table(each)
        judge(round_, "dora", each, label(0))
    said = [row for path in (round_ / "judgments").glob("*.jsonl") for row in json_rows(path)]
    found["judgments"] = sorted(json.dumps(row | {"time": None}, sort_keys=True) for row in said)
    return found | within("merge", world.made("annotate", "merge", "--round", round_, "--release", world.sample)[1])


def relabelled(world: World) -> Outputs:
    given = ("--release", world.sample, "--negatives", world.runs() / "negatives.jsonl.gz")
    out = world.out / "candidates.run"
    run("builders", "annotate", "relabel", "candidates", *given, "--out", out)
    scores = [scored(out, world.out / name) for name in ("one.run", "two.run")]
    path, found = world.made("annotate", "relabel", "move", *given, "--scores", *scores, "--threshold", 0.8)
    return {"candidates": trec(out)} | found | checked(path)


def official(world: World) -> Outputs:
    source = write_files(world.out / "source", BOTH)
    path, found = world.made("official", "--archive", source)
    rows = [
        raw_row(n, question, [[PASSAGES[0]]], [PASSAGES[each] for each in places][:3])
        for n, (question, places) in enumerate({**TRAIN, **DEV}.items())
    ]
    raw = write_rows(world.out / "zhidao.train.json", rows)
    found |= within("answers", world.made("add", "answers", "--raw", raw, "--release", path)[1])
    return found | checked(path)


GROUPS: tuple[Callable[[World], Outputs], ...] = (
    *(releases, bm25, mine, measured, exports, sets, translated, comprehension, drawn, pooled, relabelled, official),
    demo,
)
