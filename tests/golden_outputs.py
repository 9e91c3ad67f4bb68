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
    """Return the settings of a BM25 run as words of a command.

    ``changes``: other values and further options, as in ``stop_words="drop"`` for ``--stop-words drop``. An option with
    the value None is left out.
    """
    settings = BM25_SETTINGS | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    words: list[object] = []
    for option, value in settings.items():
        if value is not None:
            words += [option, value]
    return words


@dataclass
class World:
    """Outputs that the groups share (releases, runs of BM25 and negatives), each created once.

    Attributes:
        once: the fixture ``once`` of ``conftest.py``.
        get: returns the folder of a fixture by the fixture's name, for example ``sample_release``.
        out: the folder of a group's outputs.
    """

    once: Once
    get: Callable[[str], Path]
    out: Path

    @property
    def sample(self) -> Path:
        return self.get("sample_release")

    def runs(self, of: str = "sample_release") -> Path:
        """Write runs of a release, and return their folder. ``of``: the fixture of the release.

        The demo release has only the run of dev. The sample also has a run of dev with bigrams, a run of train, and
        negatives mined from the run of train.
        """

        def write_runs(folder: Path) -> None:
            folder.mkdir()
            release_path = self.get(of)
            index = folder / "index"
            run_bm25(release_path, index, folder / "dev.run.gz")
            if of == "sample_release":
                run_bm25(release_path, index, folder / "bigrams.run.gz", analyzer="bigrams", stop_words="drop")
                run_bm25(release_path, index, folder / "train.run.gz", split="train")
                mine_negatives(self.sample, "train", folder / "train.run.gz", folder / "negatives.jsonl.gz")

        return self.once(f"golden-{of}", write_runs)

    def dev(self) -> tuple[object, ...]:
        """Return the words of a command for the sample and its two dev runs."""
        return ("--release", self.sample, self.runs() / "dev.run.gz", self.runs() / "bigrams.run.gz")

    def made(self, *words: object) -> tuple[Path, Outputs]:
        """Run a verb of builders. Return the path of its release, and the release's rows with the printed output."""
        # The number tells releases apart, and is a part of the printed output.
        out = self.out / f"release-{len(list(self.out.iterdir()))}"
        report = printed("builders", *words, "--out", out)
        return out, {"printed": report} | release(out)


def run_bm25(release_path: Path, index: Path, run_path: Path, **changes: object) -> None:
    """Write a run of BM25. ``changes``: options that differ from ``BM25_SETTINGS``."""
    options = bm25_options(release=release_path, index=index, out=run_path, **changes)
    run("baselines", "bm25", "--quiet", options)


def mine_negatives(release_path: Path, split: str, run_path: Path, negatives_path: Path, *options: object) -> None:
    """Mine negatives from a run."""
    words = ["--release", release_path, "--split", split, "--run", run_path, "--out", negatives_path]
    words += options
    run("baselines", "mine", "--quiet", words)


def export_within(name: str, release_path: Path, export_format: str, out: Path, *options: object) -> Outputs:
    """Export a release, and return the files of the export with a prefix."""
    words = ["--release", release_path, "--format", export_format, "--out", out]
    words += options
    run("builders", "export", "--quiet", words)
    return within(name, export(out))


def checked(release_path: Path) -> Outputs:
    """Check a release, and return the findings of each test."""
    done = run("builders", "check", "--release", release_path, "--format", "json", code=None)
    rows = []
    for test in json.loads(done.stdout)["tests"]:
        findings = [[finding["where"], finding["count"]] for finding in test["findings"]]
        rows.append([test["test"], test["level"], test["count"], findings])
    return {"check": sorted(rows)}


def releases(world: World) -> Outputs:
    """Releases of the sample with each way to cut passages, and the findings in a spoiled release."""
    outputs = within("sample", release(world.sample)) | checked(world.sample)
    outputs["stats"] = [printed("builders", "check", "--release", world.sample)[0]["release"]]
    for name, options in (("char", ["--unit", "char"]), ("best", ["--match", "best"]), ("64", ["--min-chars", 64])):
        _, release_outputs = world.made("release", "--raw", SAMPLE, *options)
        outputs |= within(name, release_outputs)
    spoiled_release = make_release(world.out / "spoiled", spoiled_tables())
    return outputs | within("spoiled", checked(spoiled_release))


def spoiled_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the tables of a release with a fault for each test of `check`."""
    # Passages with a replacement character, with a NUL, and of a length that no model reads.
    rows = tables([*TEXTS, "\ufffd字", "\x00字", "长" * 60_000])
    empty_passage = {"_id": "0" * 32, "title": "", "text": " "}
    rows["corpus", "corpus"] += [rows["corpus", "corpus"][0], empty_passage]
    judgment_of_nothing = {"query-id": "1" * 32, "corpus-id": "2" * 32, "score": 1}
    rows["qrels", "dev"] += [rows["qrels", "dev"][0], judgment_of_nothing]
    # A training question without a positive passage, another one without a judgment, and a question of train that is in
    # dev, too.
    rows["train", "train"][1]["positive_passages"] = []
    rows["qrels", "train"][2:3] = []
    rows["queries", "dev"] += rows["queries", "train"][:1]
    return rows


def demo(world: World) -> Outputs:
    """A release of DuReader's demo rows: its run, negatives, measures and export."""
    release_path = world.get("demo_release")
    run_path = world.runs("demo_release") / "dev.run.gz"
    negatives_path = world.out / "negatives.jsonl"
    mine_negatives(release_path, "dev", run_path, negatives_path)
    outputs = {"dev.run": trec(run_path), "negatives": json_rows(negatives_path)}
    words = ("evaluate", "--release", release_path, run_path)
    outputs["evaluate"] = printed("baselines", *words)
    outputs["by"] = printed("baselines", *words, "--by", "question_type", "--answers")
    outputs |= export_within("rag", release_path, "rag", world.out / "rag", "--top-k", 5, "--run", run_path)
    return within("release", release(release_path)) | checked(release_path) | outputs


def bm25(world: World) -> Outputs:
    """Runs of BM25 with each analyzer, and with tuned parameters."""
    outputs: Outputs = {name: trec(world.runs() / f"{name}.run.gz") for name in ("dev", "bigrams", "train")}
    changes_by_name: dict[str, dict[str, object]] = {
        "characters": {"split": "test", "top_k": 20, "analyzer": "characters"},
        "both": {"max_chars": 100, "analyzer": "both", "k1": 0.9, "b": 0.4},
        "tuned": {"tune": "train", "k1": None, "b": None},
    }
    for name, changes in changes_by_name.items():
        run_path = world.out / f"{name}.run"
        run_bm25(world.sample, world.runs() / "index", run_path, **changes)
        outputs[name] = trec(run_path)
    tuned_parameters = json.loads((world.out / "tuned.run.tuned.json").read_text())
    outputs["tuned.json"] = [rounded(tuned_parameters, 4)]
    return outputs


def mine(world: World) -> Outputs:
    """Negatives with other options."""
    outputs = {"negatives": json_rows(world.runs() / "negatives.jsonl.gz")}
    for name, options in {"seed": ["--seed", 1, "--negatives", 6], "margin": ["--relative-margin", 0.1]}.items():
        negatives_path = world.out / f"{name}.jsonl"
        mine_negatives(world.sample, "train", world.runs() / "train.run.gz", negatives_path, *options)
        outputs[name] = json_rows(negatives_path)
    return outputs


def measured(world: World) -> Outputs:
    """Measures, errors, fusions, tables and leaderboards of the dev runs."""
    outputs: Outputs = {}
    outputs["evaluate"] = printed("baselines", "evaluate", *world.dev())
    outputs["holes"] = printed("baselines", "errors", "holes", *world.dev())
    outputs["duplicates"] = printed("baselines", "errors", "duplicates", *world.dev())
    outputs["compare"] = printed("baselines", "compare", *world.dev())
    outputs |= fused(world)
    run_paths = world.dev()[2:]
    words = ("--release", world.sample, run_paths[0], "--sample", 5, "--round", world.out / "errors")
    run("baselines", "errors", "draw", "--quiet", words)
    drawn_pairs = table(world.out / "errors/packages/dev-001.csv")
    outputs["errors"] = [(row["query-id"], row["corpus-id"]) for row in drawn_pairs]
    words = ("--release", world.sample, "--table", 4, "--row", "bm25", "--one-process", "--out", world.out / "tables")
    outputs["reproduce"] = []
    for row in printed("baselines", "reproduce", *words)[0]["rows"]:
        outputs["reproduce"].append([row[key] for key in ("metric", "ours", "interval", "published", "mark")])
    report = printed("baselines", "reproduce", "--release", world.sample, "--leaderboard", *run_paths)[0]
    outputs["leaderboard"] = []
    for board in report["tables"]:
        for model in board["models"]:
            outputs["leaderboard"].append([board["searched"], model["model"], model["figures"]])
    return outputs


def fused(world: World) -> Outputs:
    """The dev runs fused by rank, and by tuned weights."""
    run_paths = world.dev()[2:]
    # Weights are tuned on the same questions, which is refused without --tune-on-these.
    tuning = ("--method", "weighted", "--tune", "dev", "--tune-on-these", "--release", world.sample, "--tune-runs")
    tuning += run_paths
    outputs: Outputs = {}
    for name, options in (("rrf", ()), ("weighted", tuning)):
        run_path = world.out / f"{name}.run"
        run("baselines", "fuse", "--quiet", run_paths, options, "--out", run_path)
        outputs[name] = trec(run_path)
    return outputs


def exports(world: World) -> Outputs:
    """The sample in every export format, and a release from an exported copy."""
    negatives_options = ("--negatives", world.runs() / "negatives.jsonl.gz")
    run_options = ("--run", *world.dev()[2:])
    options_by_format: dict[str, tuple[object, ...]] = {
        "beir": run_options,
        "trec": run_options,
        "official": run_options,
        "msmarco": (),
        "tevatron": negatives_options,
        "flagembedding": negatives_options,
        "rag": run_options,
        "triplets": negatives_options,
        "pylate": negatives_options,
        "sentence-transformers": negatives_options,
    }
    outputs: Outputs = {}
    for name, options in options_by_format.items():
        outputs |= export_within(name, world.sample, name, world.out / name, *options)
    _, copy_outputs = world.made("official", "--copy", world.out / "tevatron" / "dev.jsonl")
    return outputs | within("copy", copy_outputs)


def write_medical_source(folder: Path) -> list[Path]:
    """Write the five files of cMedQA. Return their paths."""
    # The remainders make some texts equal.
    questions = [f"{number},{number % 5}号疼怎么办\n" for number in range(1, 8)]
    answers = [f"{number},{number // 10},休息{number % 9}天\n" for number in range(10, 80)]
    content_by_name = {
        "question.csv": "question_id,content\n" + "".join(questions),
        "answer.csv": "ans_id,question_id,content\n" + "".join(answers),
        "dev_candidates.txt": "question_id,ans_id,cnt,label\n1,10,0,1\n1,11,1,0\n6,60,0,1\n2,99,0,1\n2,21,0,1\n",
        "test_candidates.txt": "question_id,ans_id,cnt,label\n3,30,0,1\n3,11,1,0\n",
        "train_candidates.txt": "question_id,pos_ans_id,neg_ans_id\n4,40,11\n4,41,12\n",
    }
    return write_texts(folder, content_by_name)


def write_policy_source(folder: Path) -> list[Path]:
    """Write the two files of CCOVID. Return their paths."""
    # Some passages and questions are equal, and document d10 does not exist.
    passages = [f"d{number}\t第{number % 8}号通知。\n" for number in range(10)]
    questions = [f"{number}\td{number % 11}\t第{number % 17}问是什么？\t略\n" for number in range(20)]
    content_by_name = {
        "NCPPolicies_context.csv": "docid\ttext\n" + "".join(passages),
        "NCPPolicies_train.csv": "id\tdocid\tquestion\tanswer\n" + "".join(questions),
    }
    return write_texts(folder, content_by_name)


def write_texts(folder: Path, content_by_name: dict[str, str]) -> list[Path]:
    """Write texts to files of these names. Return their paths."""
    paths = []
    for name, content in content_by_name.items():
        path = folder / name
        path.write_text(content, encoding="utf-8")
        paths.append(path)
    return paths


def write_translations(path: Path, release_path: Path) -> Path:
    """Write English questions for the train and dev questions of a release. Return the path."""
    tables_of_release = release(release_path)
    queries = tables_of_release["queries/train"] + tables_of_release["queries/dev"]
    text = ""
    for number, row in enumerate(queries):
        text += f'{row["_id"]}\t"Question {number % 30}, in English"\n'
    path.write_text(text)
    return path


def sets(world: World) -> Outputs:
    """Releases with the sets cmedqa, ccovid and crosslingual, their exports, and a run of the last set."""
    source = world.out / "source"
    source.mkdir()
    medical_paths = write_medical_source(source)
    policy_paths = write_policy_source(source)
    # Each verb adds a set to the release of the verb before.
    release_path, release_outputs = world.made("add", "cmedqa", "--source", *medical_paths, "--release", world.sample)
    outputs = within("cmedqa", release_outputs)
    policy_options = ("--source", *policy_paths, "--test-size", 4, "--seed", 3)
    release_path, release_outputs = world.made("add", "ccovid", *policy_options, "--release", release_path)
    outputs |= within("ccovid", release_outputs)
    translations = write_translations(source / "translations.tsv", world.sample)
    release_path, release_outputs = world.made(
        "add", "crosslingual", "--source", translations, "--release", release_path
    )
    outputs |= within("crosslingual", release_outputs) | checked(release_path)
    for name, export_format in (("cmedqa", "trec"), ("crosslingual", "beir"), ("crosslingual", "tevatron")):
        out = world.out / f"{export_format}-{name}"
        outputs |= export_within(out.name, release_path, export_format, out, "--set", name)
    run_path = world.out / "bm25.run"
    run_bm25(release_path, world.runs() / "index", run_path, set="crosslingual")
    outputs["crosslingual.run"] = trec(run_path)
    return outputs


def fill_column(sheet: Path, column: str, value: Callable[[int], object]) -> list[dict[str, str]]:
    """Fill in a column of a sheet with ``value(row number)``. Return the rows as they were."""
    rows = table(sheet, "\t")
    with open(sheet, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow(row | {column: value(number)})
    return rows


def translated(world: World) -> Outputs:
    """Packages of questions to translate, sheets for two reviewers, and the release of the reviewed translations."""
    package_sheet = world.out / "packages.tsv"
    words = ("--release", world.sample, "--split", "dev", "--package-size", 10, "--out", package_sheet)
    run("builders", "annotate", "translations", "export", words)
    outputs = {"packages": fill_column(package_sheet, "english", lambda number: f"Question {number}")}
    reviews_path = world.out / "reviews.tsv"
    words = ("--release", world.sample, "--source", package_sheet, "--pairs", 5, "--out", reviews_path)
    run("builders", "annotate", "translations", "review", words)
    # Two reviewers, who find every translation correct.
    review_sheets = [reviews_path.with_suffix(f".{number}.tsv") for number in (1, 2)]
    for sheet in review_sheets:
        outputs[sheet.name] = fill_column(sheet, "correct", lambda number: 1)
    words = ("--release", world.sample, "--source", package_sheet, "--pairs", 5, "--reviews", *review_sheets)
    _, release_outputs = world.made("annotate", "translations", "import", *words)
    return outputs | within("import", release_outputs)


def write_squad_source(path: Path, questions: list[str]) -> Path:
    """Write questions as SQuAD's JSON, two questions to a paragraph number. Return the path."""
    paragraphs = []
    for number, question in enumerate(questions):
        paragraphs.append({"context": f"第{number // 2}段：{question}的答案。", "qas": [{"question": question}]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def comprehension(world: World) -> Outputs:
    """Outputs of `squad` and `similar`, with near-duplicates of a dev question and contaminated training pairs."""
    dev_questions = [f"从城市{city}坐G1次高铁到北京站要多久" for city in "甲乙丙丁戊己庚辛"]
    # The first three are near-duplicates of dev questions.
    close_questions = [dev_questions[0].replace("G", " g") + "？", dev_questions[1] + "呢", dev_questions[2]]
    close_questions += ["怎么做饺子", "怎么做米饭", "怎么做汤"]
    train_questions = close_questions + [f"别的问题{number}" for number in range(9)]
    news_lines = [f"第{length}条新闻。{'内容，' * length}完。\n" for length in range(0, 200, 20)]
    (world.out / "news.txt").write_text("".join(news_lines), "utf-8")
    train_path = write_squad_source(world.out / "train.json", train_questions)
    dev_path = write_squad_source(world.out / "dev.json", dev_questions)
    sources = ("--train", train_path, "--dev", dev_path, "--passages", world.out / "news.txt")
    release_path, release_outputs = world.made("squad", *sources, "--cut", "all", "--dev-size", 7)
    outputs = within("squad", release_outputs)
    similar_path, similar_outputs = world.made("similar", "--release", release_path)
    outputs |= within("similar", similar_outputs) | within("similar", checked(similar_path))
    pairs_path = world.out / "pairs.jsonl"
    pairs_text = ""
    for number, question in enumerate(dev_questions[::2] + close_questions):
        passage = f"第{number // 2}段：{question}的答案。"
        pairs_text += json.dumps({"query": question, "pos": [passage], "neg": dev_questions[:1]}) + "\n"
    pairs_path.write_text(pairs_text)
    outputs["contamination"] = printed("builders", "similar", "--release", release_path, "--against", pairs_path)
    return outputs


def drawn(world: World) -> Outputs:
    """Samples, extracts, a nano release, and splits by the similarity of questions."""
    hard_options = ("--hard", world.runs() / "dev.run.gz")
    release_path, release_outputs = world.made(
        "add", "samples", "--release", world.sample, "--sizes", 40, 100, "--seed", 3, *hard_options
    )
    outputs = within("samples", release_outputs)
    extract_options = ("--extract", "sample-40-hard", "--out", world.out / "extract")
    run("builders", "add", "samples", "--quiet", "--release", release_path, extract_options)
    outputs |= within("extract", release(world.out / "extract"))
    outputs |= within("nano", make_nano(world.sample, world.out / "nano", hard_options))
    run_path = world.out / "sample.run"
    run_bm25(release_path, world.runs() / "index", run_path, sample="sample-100")
    outputs["sample-100.run"] = trec(run_path)
    vectors_path = write_query_vectors(world.out / "vectors.parquet", world.sample)
    vector_options = ("--release", world.sample, "--embeddings", vectors_path)
    release_path, release_outputs = world.made("add", "restrain", *vector_options, "--size", 5, 10, "--exclude", 1)
    outputs |= within("restrain", release_outputs)
    set_name = "restrain-5-interpolation"
    outputs |= export_within(set_name, release_path, "msmarco", world.out / "set", "--set", set_name)
    _, release_outputs = world.made("add", "resttest", *vector_options, "--buckets", 2)
    return outputs | within("resttest", release_outputs)


def make_nano(release_path: Path, out: Path, hard_options: tuple[object, ...]) -> Outputs:
    """Extract a nano release of 10 questions and 60 passages, and return its rows."""
    words = ("--release", release_path, "--nano", *hard_options, "--seed", 3, "--extract", "--out", out)
    # The sample has fewer questions than a real nano release.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builders.add.samples.NANO_QUERIES", 10)
        patch.setattr("builders.add.samples.NANO_PASSAGES", 60)
        run("builders", "add", "samples", "--quiet", words)
    return release(out)


def write_query_vectors(path: Path, release_path: Path) -> Path:
    """Write a vector for each question of a release, made of the bytes of its id. Return the path."""
    tables_of_release = release(release_path)
    query_ids = []
    for split in ("train", "dev", "test"):
        query_ids += [row["_id"] for row in tables_of_release[f"queries/{split}"]]
    vectors = []
    for query_id in query_ids:
        vectors.append([byte - 127.5 for byte in bytes.fromhex(query_id)])
    pq.write_table(pa.table({"_id": query_ids, "vector": vectors}), path)
    return path


def label_with_errors(error_share: float, package: str = "") -> Callable[[dict[str, Any]], int]:
    """Return an annotator who labels at random, and answers this share of the package's rows the other way."""

    def label(row: dict[str, Any]) -> int:
        right_label = int(chance(row["query-id"], row["corpus-id"]) < 0.4)
        is_wrong = row["package"] == package and chance(row["corpus-id"], row["query-id"]) < error_share
        return right_label ^ is_wrong

    return label


def pooled(world: World) -> Outputs:
    """A pool, and a round over this pool through all steps: packages, reviews, check, adjudication and merge."""
    union = world.out / "union.run"
    pool_path = world.out / "pool.jsonl"
    words = ("annotate", "pool", "candidates", "--release", world.sample, "--split", "dev", "--depth", 10)
    run_options = ("--runs", *world.dev()[2:])
    outputs = {"candidates": printed("builders", *words, *run_options, "--out", union), "union": trec(union)}
    scored_runs = [scored(union, world.out / name) for name in ("one.run", "two.run")]
    words = ("annotate", "pool", "select", "--release", world.sample, "--split", "dev", "--depth", 10)
    score_options = ("--scores", *scored_runs, "--out", pool_path)
    outputs["select"] = printed("builders", *words, *run_options, *score_options)
    outputs["pool"] = json_rows(pool_path)
    round_path = world.out / "round"
    words = ("--pool", pool_path, "--release", world.sample, "--package-size", 27, "--review-pairs", 10)
    annotate("export", round_path, *words)
    outputs |= finish_round(round_path)
    # Only accepted labels go into the release.
    _, release_outputs = world.made("annotate", "merge", "--round", round_path, "--release", world.sample)
    return outputs | within("merge", release_outputs)


def finish_round(round_path: Path) -> Outputs:
    """Take a round from its packages to the adjudication, and return the sheets of each step and the judgments."""
    outputs: Outputs = {}
    package_sheets = sorted((round_path / "packages").glob("*.csv"))
    for sheet in package_sheets:
        outputs[f"round/{sheet.stem}"] = table(sheet)
    for tasks_path in sorted((round_path / "label-studio").glob("*.json")):
        outputs[f"label-studio/{tasks_path.stem}"] = json.loads(tasks_path.read_text("utf-8"))
    # Half of Anna's labels in the second package are wrong, so that the reviewers disagree.
    for sheet in package_sheets:
        judge(round_path, "anna", sheet, label_with_errors(0.5, "dev-002"))
    annotate("review", round_path, "--reviewers", "ben", "carl")
    for sheet in sorted((round_path / "reviews").rglob("*.csv")):
        reviewer = sheet.parent.name
        outputs[f"reviews/{reviewer}/{sheet.stem}"] = table(sheet)
        judge(round_path, reviewer, sheet, label_with_errors(0.1, "dev-001"))
    outputs["check"] = printed("builders", "annotate", "check", "--round", round_path)
    for package in outputs["check"][0]["packages"]:
        del package["why"]  # a message
    annotate("adjudicate", round_path)
    for sheet in sorted((round_path / "adjudication").glob("*.csv")):
        outputs[f"adjudication/{sheet.stem}"] = table(sheet)
        judge(round_path, "dora", sheet, label_with_errors(0))
    # The judgments differ between runs only in their time and in their files.
    judgment_lines = []
    for path in (round_path / "judgments").glob("*.jsonl"):
        for row in json_rows(path):
            judgment_lines.append(json.dumps(row | {"time": None}, sort_keys=True))
    outputs["judgments"] = sorted(judgment_lines)
    return outputs


def relabelled(world: World) -> Outputs:
    """Candidates among the negatives, and the release with the false negatives moved."""
    inputs = ("--release", world.sample, "--negatives", world.runs() / "negatives.jsonl.gz")
    candidates = world.out / "candidates.run"
    run("builders", "annotate", "relabel", "candidates", inputs, "--out", candidates)
    scored_runs = [scored(candidates, world.out / name) for name in ("one.run", "two.run")]
    options = ("--scores", *scored_runs, "--threshold", 0.8)
    release_path, release_outputs = world.made("annotate", "relabel", "move", *inputs, *options)
    return {"candidates": trec(candidates)} | release_outputs | checked(release_path)


def official(world: World) -> Outputs:
    """A release from the official archives, and its answers from raw rows."""
    source = write_files(world.out / "source", BOTH)
    release_path, outputs = world.made("official", "--archive", source)
    passage_numbers_by_question = TRAIN | DEV
    rows = []
    for number, (question, passage_numbers) in enumerate(passage_numbers_by_question.items()):
        answers = [PASSAGES[passage_number] for passage_number in passage_numbers]
        rows.append(raw_row(number, question, [[PASSAGES[0]]], answers[:3]))
    raw_path = write_rows(world.out / "zhidao.train.json", rows)
    _, answer_outputs = world.made("add", "answers", "--raw", raw_path, "--release", release_path)
    return outputs | within("answers", answer_outputs) | checked(release_path)


GROUPS: tuple[Callable[[World], Outputs], ...] = (
    releases,
    bm25,
    mine,
    measured,
    exports,
    sets,
    translated,
    comprehension,
    drawn,
    pooled,
    relabelled,
    official,
    demo,
)
