"""Measure systems on perturbed questions: the tables and the picture of docs/stress.md.

The systems are BM25 on words, BM25 (the default: words and bigrams), a static model, a dense encoder, two stages (the
encoder re-ranks BM25's best passages), and the fusion of BM25 and the encoder. Two repairs of BM25 follow: texts in
simplified Chinese (--simplify), and tokens with the pinyin of words (examples/pinyin_tokens.py).

Releases are given as NAME=RELEASE and have sets of `builders add stress`. Every system searches once, by the questions
of all sets together, so passages are encoded once. The changes are those of `baselines compare --stress`. A started
command resumes: runs in --work that are complete are not made again.

--out gets PREFIX.json (all figures), PREFIX.md (the tables) and PREFIX.png (the picture). --small measures tiny random
models on the embedded sample, which only shows that the steps work.

Examples:

  python benchmarks/stress.py demo=build/stress --encoder intfloat/multilingual-e5-small --static build/models/static \\
    --work build/stress-runs --out build/stress-figures
  python benchmarks/stress.py --small --work build/small --out build/small/figures
"""

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, machine, parser_of, write_json

from baselines.bm25.search_bm25 import search_bm25
from baselines.measure.compare import compare_runs
from baselines.measure.fuse import fuse_runs
from baselines.measure.stress_drops import AS_ASKED
from baselines.retrieve.any_model import run_model
from builders.core.errors import InputError
from builders.store.layout import SETS, STRESS, STRESS_KINDS
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

sys.path.append(str(ROOT / "examples"))

from pinyin_tokens import words_and_pinyin

MEASURES = ("MRR@10", "recall@50")
TITLES = {"MRR@10": "MRR@10", "recall@50": "Recall@50"}
ENCODER_OPTIONS = ("family", "query_prompt", "passage_prompt", "max_length", "backend", "dtype")
SECOND_STAGE_PASSAGES = 10  # of BM25, which the encoder re-ranks
RESAMPLES = 99  # few, because the tables and the picture show the t-test alone
DARKEST = 35  # points of a drop that is black in the picture
FEW_QUESTIONS = 20  # kinds with fewer questions are grey in the picture
Figures = dict[str, Any]


@dataclass(frozen=True)
class Systems:
    """The models, and the options of `baselines run` for the encoder. A model that is None is not measured."""

    encoder: Path | str | None
    static: Path | None
    encoder_options: Mapping[str, Any]


def write_questions(release_path: Path, split: str, questions_path: Path) -> dict[str, list[str]]:
    """Write the questions of all sets as JSON lines, each id once. Return the ids of each set by the set's name.

    A set without this split, or with a single question, is skipped.
    """
    release = open_release(release_path)
    query_texts: dict[str, str] = {}
    ids_by_set: dict[str, list[str]] = {}
    for set_name in (AS_ASKED, *(f"{STRESS}{kind}" for kind in STRESS_KINDS)):
        config = SETS[set_name].queries
        if (config, split) in release.splits():
            set_texts = release.texts(config, split)
            if len(set_texts) < 2:
                continue  # too few for a comparison
            ids_by_set[set_name] = list(set_texts)
            query_texts.update(set_texts)
    lines = [json.dumps({"_id": query_id, "text": text}) for query_id, text in query_texts.items()]
    questions_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ids_by_set


def search_systems(
    release_path: Path, split: str, questions_path: Path, folder: Path, systems: Systems
) -> dict[str, Path]:
    """Search by every question with every system. Return the run of each system by its name in the tables."""
    runs: dict[str, Path] = {}

    def search(title: str, file_name: str, make_run: Callable[..., Any], **options: Any) -> None:
        runs[title] = folder / f"{file_name}.run.gz"
        print(f"{release_path}: {title}", file=sys.stderr, flush=True)
        make_run(out=runs[title], **options)

    questions = {"release": release_path, "split": split, "queries_file": questions_path}
    search("BM25, words", "bm25-words", search_bm25, analyzer="words", stop_words="keep", **questions)
    search("BM25", "bm25", search_bm25, **questions)
    if systems.static:
        search("static", "static", run_model, model=str(systems.static), **questions)
    if systems.encoder:
        encoder = {"model": str(systems.encoder), **questions, **systems.encoder_options}
        search("encoder", "encoder", run_model, **encoder)
        search("two stages", "two-stages", run_model, over=runs["BM25"], top_k=SECOND_STAGE_PASSAGES, **encoder)
        search("fusion", "fusion", fuse_runs, runs=[runs["BM25"], runs["encoder"]])
    search("BM25, simplified", "bm25-simplified", search_bm25, simplify=True, **questions)
    search("BM25, pinyin", "bm25-pinyin", search_bm25, tokenizer=words_and_pinyin, **questions)
    return runs


def split_run(run_path: Path, ids_by_set: Mapping[str, Sequence[str]]) -> list[Path]:
    """Write the part of a run for each set, and return the files. A question without hits stays absent."""
    hits = read_run(run_path).hits
    part_paths = []
    for set_name, query_ids in ids_by_set.items():
        part_path = run_path.with_name(f"{run_path.name.removesuffix('.run.gz')}.{set_name}.run")
        write_run(part_path, [(query_id, hits[query_id]) for query_id in query_ids if query_id in hits])
        part_paths.append(part_path)
    return part_paths


def measure_release(title: str, release_path: Path, split: str, folder: Path, systems: Systems) -> Figures:
    """Return the sizes of a release, and the result of `compare --stress` for each system."""
    folder.mkdir(parents=True, exist_ok=True)
    questions_path = folder / "questions.jsonl"
    ids_by_set = write_questions(release_path, split, questions_path)
    if len(ids_by_set) < 2:
        raise InputError(f"has no perturbed {split} questions; run `python -m builders add stress`", path=release_path)
    results = {}
    for system, run_path in search_systems(release_path, split, questions_path, folder, systems).items():
        parts = split_run(run_path, ids_by_set)
        report = compare_runs(
            parts, release=release_path, split=split, stress=True, measure=MEASURES, resamples=RESAMPLES, changed=0
        )
        results[system] = {"means": report.value["means"], "measures": report.value["measures"]}
    return {
        "title": title,
        "split": split,
        "passages": open_release(release_path).rows("corpus", "corpus"),
        "queries": report.value["queries"],
        "systems": results,
    }


def kind_rows(results: Figures, measure: str) -> dict[str, Figures]:
    """Return the rows of a system's result under a measure by kind."""
    return {row["kind"]: row for row in results["measures"][measure]}


def format_tables(collections: Sequence[Figures]) -> str:
    """Return a Markdown table of each collection and measure: the score as asked, and the change of each kind."""
    parts = []
    for collection in collections:
        for measure in MEASURES:
            parts.append(_format_table(collection, measure))
    return "\n\n".join(parts) + "\n"


def _format_table(collection: Figures, measure: str) -> str:
    """Return the table of one collection (a result of :func:`measure_release`) and one measure, with a title."""
    first_rows = kind_rows(next(iter(collection["systems"].values())), measure)
    header = ["system", "as asked", *(f"`{kind}`" for kind in first_rows)]
    question_counts = ["questions", str(collection["queries"])]
    question_counts += [str(row["queries"]) for row in first_rows.values()]
    lines = [header, ["---", *["---:"] * (len(header) - 1)], question_counts]
    for system, results in collection["systems"].items():
        cells = [system, f"{100 * results['means'][measure]:.2f}"]
        cells += [_format_change(row) for row in kind_rows(results, measure).values()]
        lines.append(cells)
    title = f"{collection['title']}, {collection['passages']:,} passages: {TITLES[measure]}"
    return f"{title}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _format_change(row: Figures) -> str:
    """Return a change in points with half of its interval, as "-9.5 ± 5.5*". No interval if no question changed."""
    if not row["deviation"]:
        return f"{100 * row['difference']:.1f}"
    low, high = row["interval"]
    mark = "*" if row["told_apart"] else ""
    return f"{100 * row['difference']:+.1f} ± {50 * (high - low):.1f}{mark}"


def draw_picture(collections: Sequence[Figures], path: Path) -> None:
    """Draw a panel for each collection: the change of MRR@10 by system and kind. A deeper drop is darker."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measure = MEASURES[0]
    system_count = len(collections[0]["systems"])
    size = (7.5, 1.2 + len(collections) * (0.7 + 0.3 * system_count))
    figure, panels = plt.subplots(len(collections), 1, figsize=size, squeeze=False, layout="constrained")
    for panel, collection in zip(panels[:, 0], collections, strict=True):
        rows_by_system = {name: kind_rows(results, measure) for name, results in collection["systems"].items()}
        drops = []
        for rows in rows_by_system.values():
            drops.append([-100 * row["difference"] for row in rows.values()])
        panel.imshow(drops, cmap="Greys", vmin=0, vmax=DARKEST, aspect="auto")
        for y, rows in enumerate(rows_by_system.values()):
            for x, row in enumerate(rows.values()):
                colour = "black"
                if drops[y][x] > DARKEST / 2:
                    colour = "white"  # on a dark cell
                elif row["queries"] < FEW_QUESTIONS:
                    colour = "0.6"  # a grey
                weight = "bold" if row["told_apart"] else "normal"
                text = f"{-drops[y][x]:+.1f}" if row["deviation"] else "0"
                panel.text(x, y, text, ha="center", va="center", color=colour, weight=weight, size=8)
        # A small collection may lack questions of a kind. All systems of a collection have the same kinds.
        kinds = list(next(iter(rows_by_system.values())))
        panel.set_xticks(range(len(kinds)), kinds, size=8)
        panel.set_yticks(range(len(rows_by_system)), list(rows_by_system), size=8)
        panel.tick_params(length=0)
        panel.set_title(f"{collection['title']}: change of {TITLES[measure]} in points", size=9, loc="left")
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def make_small_inputs(work: Path) -> tuple[list[str], Systems]:
    """Make a release of the embedded sample with all kinds, and tiny random models, in ``work``."""
    from tiny_kinds import write_static
    from tiny_models import write_dual

    from builders.add.add_stress import add_stress
    from builders.release.build_release import build_release

    base = work / "sample"
    build_release([ROOT / "builders" / "sample"], out=base)
    add_stress(base, split=["dev"], out=work / "stressed")
    models = {}
    for name, write_model in (("static", write_static), ("encoder", write_dual)):
        models[name] = work / name
        if not models[name].exists():
            write_model(models[name])
    return [f"embedded sample={work / 'stressed'}"], Systems(models["encoder"], models["static"], {})


def _option(name: str) -> str:
    """Return a parameter's name on the command line."""
    return f"--{name.replace('_', '-')}"


def read_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("releases", nargs="*", metavar="NAME=RELEASE", help="a release with perturbed questions")
    parser.add_argument("--split", default="dev", help="split of the questions (default: dev)")
    parser.add_argument("--encoder", metavar="M", help="dense model: folder or hub name (default: none is measured)")
    parser.add_argument("--static", type=Path, metavar="DIR", help="static model (default: none is measured)")
    for name in ENCODER_OPTIONS:
        option_type = int if name == "max_length" else str
        option_help = f"as in `baselines run {_option(name)}`, for the encoder"
        parser.add_argument(_option(name), type=option_type, help=option_help)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="PREFIX.json, .md and .png are written"
    )
    parser.add_argument("--small", action="store_true", help="tiny models on the embedded sample")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.small:
        named_releases, systems = make_small_inputs(options.work)
    else:
        encoder_options = {name: getattr(options, name) for name in ENCODER_OPTIONS}
        used_options = {name: value for name, value in encoder_options.items() if value is not None}
        named_releases, systems = options.releases, Systems(options.encoder, options.static, used_options)
    if not named_releases:
        sys.exit("expected NAME=RELEASE, or --small")
    collections = []
    for number, named_release in enumerate(named_releases):
        title, _, release = named_release.partition("=")
        folder = options.work / f"runs-{number}"
        collections.append(measure_release(title, Path(release), options.split, folder, systems))
        # The files are written after each release, because a release can take an hour.
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_json(options.out.with_suffix(".json"), machine() | {"date": date, "collections": collections})
        options.out.with_suffix(".md").write_text(format_tables(collections), encoding="utf-8")
        draw_picture(collections, options.out.with_suffix(".png"))
    print(format_tables(collections), end="")


if __name__ == "__main__":
    main()
