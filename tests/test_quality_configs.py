"""Configs of Section 2.3, sets for interpolation and extrapolation, and samples, as other verbs read them."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run, tree
from releases import QUESTIONS, SIMILAR, TEXTS, make_release, md5, passage, quality_tables, tables
from test_peers import block, reciprocal_rank
from tiny_models import write_dual

from baselines.core.passages import open_passages
from baselines.train.dev_sample import SampledPassages, draw_dev_sample
from baselines.train.recipe import read_recipe
from baselines.train.recipe_costs import CollectionSizes
from baselines.train.training_pairs import read_pairs
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

pytestmark = pytest.mark.usefixtures("own_cache")
TRAIN = QUESTIONS["train"]
EARLIER, WET = QUESTIONS["dev"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Write a release with the configs of Section 2.3."""
    return make_release(tmp_path / "release", quality_tables())


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Write a run of two passages for each dev question. The positive of the second question has rank 2."""
    path = tmp_path / "some.run"
    write_ranking(path, {EARLIER: [TEXTS[4], TEXTS[0]], WET: [TEXTS[1], TEXTS[5]]})
    return path


def write_ranking(path: Path, rankings: dict[str, list[str]]) -> Path:
    """Write a run of question -> passages, best first."""
    hits_by_query = []
    for question, texts in rankings.items():
        hits_by_query.append((md5(question), [(md5(text), -rank) for rank, text in enumerate(texts)]))
    write_run(path, hits_by_query)
    return path


@pytest.mark.parametrize(
    ("words", "queries", "mrr", "first"),
    [
        ((), 2, 0.75, 0.5),
        (("--queries", "others"), 1, 1.0, 1.0),
        (("--queries", "duplicated"), 1, 0.5, 0.0),
        (("--qrels-config", "qrels-before"), 2, 0.5, 0.0),
        (("--queries", "others", "--qrels-config", "qrels-before"), 1, 0.5, 0.0),
    ],
)
def test_a_run_is_measured_on_some_questions_by_some_judgments(
    release: Path, run_path: Path, words: tuple[str, ...], queries: int, mrr: float, first: float
) -> None:
    done = run("baselines", "evaluate", "--release", release, "--split", "dev", words, run_path, "--format", "json")
    (result,) = json.loads(done.stdout)
    assert result["queries"] == queries
    assert result["official"]["MRR@10"] == mrr
    assert result["official"]["recall@1"] == first


def write_negatives(path: Path, negatives: dict[str, str]) -> Path:
    """Write mined negatives, one passage for each question."""
    lines = []
    for question, text in negatives.items():
        lines.append(json.dumps({"query-id": md5(question), "negative-ids": [md5(text)]}))
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_bm25_and_mine_take_the_removed_questions_alone(release: Path, tmp_path: Path, own_cache: None) -> None:
    inputs = ["--release", release, "--queries", "train-similar", "--split", "train"]
    run("baselines", "bm25", inputs, "--out", tmp_path / "similar.run", "--index", tmp_path / "index")
    run("baselines", "mine", inputs, "--run", tmp_path / "similar.run", "--out", tmp_path / "similar.jsonl")
    rankings = read_run(tmp_path / "similar.run").rankings
    assert list(rankings) == [md5(SIMILAR)]
    ranking = rankings[md5(SIMILAR)]
    assert ranking[0] == md5(TEXTS[5])
    row = json.loads((tmp_path / "similar.jsonl").read_text())
    # The question's positive, which BM25 ranks first, is not a negative.
    assert row["query-id"] == md5(SIMILAR)
    assert set(row["negative-ids"]) == set(ranking[1:])


def test_a_training_with_similar_questions_has_them_after_the_same_others(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    passages = open_passages(opened, keep=tmp_path / "keep")
    train_negatives = write_negatives(tmp_path / "train.gz", dict.fromkeys(TRAIN, TEXTS[5]))
    similar_negatives = write_negatives(tmp_path / "similar.jsonl", {SIMILAR: TEXTS[1]})
    one_negative = "data.negatives_per_positive=1"
    recipe = read_recipe("ce-bm25-neg", [one_negative])
    similar_recipe = read_recipe("ce-bm25-neg", [one_negative, "data.similar=true"])
    pairs = read_pairs(opened, recipe, passages, [train_negatives])
    with_similar = read_pairs(opened, similar_recipe, passages, [train_negatives, similar_negatives])
    assert pairs.texts == TRAIN
    assert pairs.positive.tolist() == [0, 1, 2, 3]
    assert pairs.negatives.tolist() == [[5], [5], [5], [5]]
    assert with_similar.texts == [*TRAIN, SIMILAR]
    assert with_similar.positive.tolist() == [0, 1, 2, 3, 5]
    assert with_similar.negatives.tolist() == [[5], [5], [5], [5], [1]]
    assert with_similar.counts["random_negatives"] == 0


NEAR = "restrain-2-interpolation"
FAR = "restrain-1-extrapolation"
BUCKET = "resttest-bucket1"


@pytest.fixture
def drawn_release(tmp_path: Path) -> Path:
    """Training questions 0 and 1 are near, 3 is far. Bucket 1 has question 0 of both splits."""
    rows = tables()
    train = rows["qrels", "train"]
    dev = rows["qrels", "dev"]
    rows[NEAR, "train"] = train[:2]
    rows[FAR, "train"] = train[3:]
    rows[BUCKET, "train"] = train[1:]
    rows[BUCKET, "extrapolation"] = dev[:1]
    rows[BUCKET, "interpolation"] = dev[1:]
    return make_release(tmp_path / "release", rows)


@pytest.mark.parametrize(("name", "numbers"), [(NEAR, [0, 1]), (FAR, [3]), (BUCKET, [1, 2, 3]), ("main", [0, 1, 2, 3])])
def test_a_recipe_trains_on_the_config_that_it_names(
    drawn_release: Path, tmp_path: Path, name: str, numbers: list[int]
) -> None:
    opened = open_release(drawn_release)
    passages = open_passages(opened, keep=tmp_path / "keep")
    # Mined once for all training questions.
    negatives = write_negatives(tmp_path / "negatives.jsonl", dict.fromkeys(TRAIN, TEXTS[4]))
    recipe = read_recipe("de-bm25-neg", [f"data.set={name}", "data.negatives_per_positive=1"])
    pairs = read_pairs(opened, recipe, passages, [negatives])
    assert pairs.texts == [TRAIN[number] for number in numbers]
    assert pairs.positive.tolist() == numbers
    assert set(pairs.negatives.ravel().tolist()) == {4}
    assert recipe.resolved()["data"]["set"] == name
    assert CollectionSizes(opened).pairs(name, "train") == len(numbers)  # the count of `reproduce --dry-run`
    # Checkpoints are evaluated on dev of the main set, because a drawn config has no dev questions.
    sample = draw_dev_sample(opened, recipe, passages, None)
    assert isinstance(sample, SampledPassages)
    assert list(sample.queries.values()) == QUESTIONS["dev"]


def test_an_export_has_the_drawn_training_questions_and_the_test_questions(drawn_release: Path, tmp_path: Path) -> None:
    out = tmp_path / "bucket"
    run("builders", "export", "--release", drawn_release, "--set", BUCKET, "--format", "msmarco", "--out", out)
    expected_names = set()
    for split, questions in (("train", TRAIN[1:]), ("interpolation", [WET]), ("extrapolation", [EARLIER])):
        query_lines = (out / f"queries.{split}.tsv").read_text("utf-8").split("\n")[:-1]
        assert query_lines == [f"{md5(text)}\t{text}" for text in questions]
        qrels_lines = (out / f"qrels.{split}.tsv").read_text("utf-8").split("\n")[:-1]
        assert [line.split("\t")[0] for line in qrels_lines] == [md5(text) for text in questions]
        expected_names |= {f"queries.{split}.tsv", f"qrels.{split}.tsv"}
    assert {path.name for path in out.glob("q*")} == expected_names


TEXTS_OF_90 = list(TEXTS)
for _text in TEXTS:
    TEXTS_OF_90 += [f"{number}号{_text}" for number in range(14)]
IDS_OF_90 = [md5(text) for text in TEXTS_OF_90]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Write a release of 90 passages in three shards."""
    return make_release(tmp_path / "release", tables(TEXTS_OF_90), rows_per_shard=40)


def add_samples(large: Path, out: Path, *words: Any) -> list[dict[str, Any]]:
    """Write a release with samples. Return a row of figures for each sample."""
    done = run("builders", "add", "samples", "--release", large, "--out", out, "--format", "json", words)
    figures: list[dict[str, Any]] = json.loads(done.stdout)
    return figures


def sampled_ids(release: Path, config: str) -> list[str]:
    """Return the passage ids of a sample."""
    ids: list[str] = open_release(release).table(config, "corpus")["_id"].to_pylist()
    return ids


@pytest.fixture
def hard_run(tmp_path: Path) -> Path:
    """Write a run of 20 and 21 passages, and of a query that the release lacks."""
    rankings = {EARLIER: TEXTS_OF_90[10:30], WET: [TEXTS[4], *TEXTS_OF_90[20:40]], "another": TEXTS_OF_90[60:]}
    return write_ranking(tmp_path / "hard.run", rankings)


def test_samples_are_nested_and_in_the_order_of_the_corpus(large: Path, hard_run: Path, tmp_path: Path) -> None:
    words = ["--sizes", "40", "8", "20", "--seed", "3", "--hard", hard_run]
    figures = add_samples(large, tmp_path / "out", *words)
    names = ["sample-8", "sample-20", "sample-40", "sample-8-hard", "sample-20-hard", "sample-40-hard"]
    assert [row["config"] for row in figures] == names
    samples = [sampled_ids(tmp_path / "out", name) for name in names]
    assert [len(ids) for ids in samples] == [8, 20, 40, 8, 20, 40]
    for ids in samples:
        assert ids == sorted(set(ids), key=IDS_OF_90.index)
    # The positives are in every sample.
    positive_ids = {md5(TEXTS[4]), md5(TEXTS[5])}
    assert positive_ids <= set(samples[0]) < set(samples[1]) < set(samples[2])
    assert positive_ids <= set(samples[3]) < set(samples[4]) < set(samples[5])


def test_hard_samples_have_the_best_passages_of_a_run(large: Path, hard_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    figures = add_samples(large, out, "--sizes", "40", "8", "20", "--seed", "3", "--hard", hard_run)
    # Ranks 1 to 4 of both questions are passages 10 to 13, 20 to 22, and one positive. The next rank is cut.
    best_ids = {IDS_OF_90[number] for number in (10, 11, 12, 20, 21)}
    chosen_ids = set(sampled_ids(out, "sample-8-hard")) - {IDS_OF_90[4], IDS_OF_90[5]}
    assert best_ids < chosen_ids
    assert chosen_ids - best_ids < {IDS_OF_90[13], IDS_OF_90[22]}
    assert not set(sampled_ids(out, "sample-20-hard")) & set(IDS_OF_90[60:])
    # The runs have 30 passages, and 8 are random.
    assert figures[-1]["hard"] == 30
    assert figures[-1]["passages"] == 40
    every_passage = write_ranking(tmp_path / "every.run", {EARLIER: TEXTS_OF_90[:45], WET: TEXTS_OF_90[45:]})
    figures = add_samples(large, tmp_path / "all", "--sizes", "89", "--hard", every_passage)
    assert figures[-1]["hard"] == 89 - 2  # no random passage


def test_samples_do_not_depend_on_the_order_of_the_passages(large: Path, hard_run: Path, tmp_path: Path) -> None:
    words = ["--sizes", "40", "8", "20", "--seed", "3", "--hard", hard_run]
    add_samples(large, tmp_path / "out", *words)
    turned = make_release(tmp_path / "turned", tables(TEXTS_OF_90[:6] + TEXTS_OF_90[:5:-1]))
    add_samples(turned, tmp_path / "again", *words)
    for config in ("sample-20", "sample-20-hard"):
        assert set(sampled_ids(tmp_path / "again", config)) == set(sampled_ids(tmp_path / "out", config))


def test_new_samples_replace_the_earlier_ones(large: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    add_samples(large, out, "--sizes", "8", "20", "--seed", "3")
    first_ids = set(sampled_ids(out, "sample-20"))
    add_samples(out, out, "--sizes", "20", "--seed", "4")
    assert "sample-8" not in {config for config, _ in open_release(out).splits()}
    assert set(sampled_ids(out, "sample-20")) != first_ids


def test_check_names_what_a_sample_lists_twice_and_what_is_not_there(tmp_path: Path) -> None:
    rows: Any = tables()
    rows["sample-4", "corpus"] = [{"_id": md5(text)} for text in (TEXTS[0], TEXTS[0], TEXTS[1], "lost")]
    done = run("builders", "check", "--release", make_release(tmp_path / "release", rows), code=1)
    assert f"1 ids not in corpus: {md5('lost')}" in done.stdout
    assert f"1 ids listed more than once: {md5(TEXTS[0])}" in done.stdout


def test_an_extract_is_a_release_of_its_own(large: Path, tmp_path: Path) -> None:
    sampled = tmp_path / "sampled"
    extract = tmp_path / "extract"
    add_samples(large, sampled, "--sizes", "30")
    words = ["add", "samples", "--release", sampled, "--out", extract, "--extract"]
    assert run("builders", words, "sample-30").stdout == f"{extract}: 30 passages, the queries of dev\n"
    assert "expected a config of `add samples`" in run("builders", words, "corpus", code=1).error
    # BM25 on the extract finds the same passages as `bm25 --sample`.
    bm25 = ["bm25", "--threads", "1", "--top-k", "7", "--split", "dev"]
    run("baselines", bm25, "--release", extract, "--out", tmp_path / "extract.run")
    run("baselines", bm25, "--release", sampled, "--sample", "sample-30", "--out", tmp_path / "sample.run")
    assert read_run(tmp_path / "extract.run").hits == read_run(tmp_path / "sample.run").hits


# Nano releases

SEED = 3
NANO_QUESTIONS = [f"第{number}个问题" for number in range(12)]
Nano = Callable[..., dict[str, Any]]


def nano_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return rows of 12 questions. Question n has the positive 2n, and the passage 2n + 1 is judged 0."""
    rows = tables(TEXTS_OF_90)
    for config in ("queries", "qrels", "dev"):
        rows[config, "dev"] = []
    for number, question in enumerate(NANO_QUESTIONS):
        query_id = md5(question)
        rows["queries", "dev"].append({"_id": query_id, "text": question})
        for passage_number, score in ((2 * number, 1), (2 * number + 1, 0)):
            judgment = {"query-id": query_id, "corpus-id": IDS_OF_90[passage_number], "score": score}
            rows["qrels", "dev"].append(judgment)
        joined_row: dict[str, Any] = {"query_id": query_id, "query": question, "negative_passages": []}
        joined_row["positive_passages"] = [passage(TEXTS_OF_90[2 * number])]
        rows["dev", "dev"].append(joined_row)
    return rows


def nano_rankings(hit_count: int) -> list[dict[str, list[str]]]:
    """Return two runs. One ranks passages from 50 + 3n on, and the other from 20 + n on, for question n."""
    first_ranking = {}
    second_ranking = {}
    for number, question in enumerate(NANO_QUESTIONS):
        first_ranking[question] = TEXTS_OF_90[50 + 3 * number :][:hit_count]
        second_ranking[question] = TEXTS_OF_90[20 + number :][:hit_count]
    return [first_ranking, second_ranking]


@pytest.fixture
def nano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nano:
    """``nano(out, hit_count, ...)`` writes a nano release (5 of 12 questions, 40 passages), and returns its figures."""
    monkeypatch.setattr("builders.add.samples.NANO_QUERIES", 5)
    monkeypatch.setattr("builders.add.samples.NANO_PASSAGES", 40)

    def make_nano(out: Path, hit_count: int, seed: int = SEED) -> dict[str, Any]:
        release = make_release(tmp_path / "release", nano_tables(), rows_per_shard=40)
        run_paths = []
        for number, rankings in enumerate(nano_rankings(hit_count)):
            run_paths.append(write_ranking(tmp_path / f"{number}.run", rankings))
        words = ["samples", "--release", release, "--out", out, "--nano", "--extract", "--format", "json"]
        done = run("builders", "add", words, "--seed", seed, "--hard", run_paths)
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures

    return make_nano


def draw_questions() -> list[str]:
    """Return the five questions whose hashes are the smallest."""

    def sort_key(question: str) -> bytes:
        return hashlib.sha256(f"{SEED}\n{md5(question)}".encode()).digest()

    return sorted(NANO_QUESTIONS, key=sort_key)[:5]


def best_ranks(questions: list[str], hit_count: int) -> dict[str, int]:
    """Return the best rank of every retrieved passage, from 0."""
    ranks: dict[str, int] = {}
    for rankings in nano_rankings(hit_count):
        for question in questions:
            for rank, text in enumerate(rankings[question]):
                ranks[md5(text)] = min(rank, ranks.get(md5(text), rank))
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize("hit_count", [6, 2])  # more hits than places, and fewer
def test_a_nano_release_has_drawn_questions_their_passages_and_the_best_hits(
    nano: Nano, tmp_path: Path, hit_count: int
) -> None:
    figures = nano(tmp_path / "nano", hit_count)
    questions = draw_questions()
    release = open_release(tmp_path / "nano")
    assert set(release.splits()) == {("corpus", "corpus"), ("queries", "dev"), ("qrels", "dev"), ("dev", "dev")}
    assert set(release.texts("queries", "dev")) == set(map(md5, questions))
    expected_pairs = set()
    for question in questions:
        number = NANO_QUESTIONS.index(question)
        expected_pairs |= {(md5(question), IDS_OF_90[2 * number]), (md5(question), IDS_OF_90[2 * number + 1])}
    qrels = release.table("qrels", "dev").to_pylist()
    assert {(row["query-id"], row["corpus-id"]) for row in qrels} == expected_pairs

    chosen_ids = [row["_id"] for row in release.table("corpus", "corpus").to_pylist()]
    assert len(chosen_ids) == 40
    assert chosen_ids == sorted(set(chosen_ids), key=IDS_OF_90.index)
    judged_ids = {passage_id for _, passage_id in expected_pairs}
    assert judged_ids <= set(chosen_ids)
    ranks = best_ranks(questions, hit_count)
    hard_ids = set(ranks) - judged_ids
    chosen_hard_ids = hard_ids & set(chosen_ids)
    assert (figures["judged"], figures["hard"], figures["queries"]) == (10, len(chosen_hard_ids), 5)
    if hit_count == 2:
        assert len(hard_ids) < 30  # the rest is random
        assert chosen_hard_ids == hard_ids
    else:
        assert len(hard_ids) > 30
        assert set(chosen_ids) == judged_ids | chosen_hard_ids
        worst_chosen_rank = max(ranks[passage_id] for passage_id in chosen_hard_ids)
        assert worst_chosen_rank <= min(ranks[passage_id] for passage_id in hard_ids - chosen_hard_ids)
    run("builders", "check", "--release", tmp_path / "nano")


@pytest.mark.parametrize("lacking", ["release", "hard.run"])
def test_an_unknown_passage_of_a_nano_release_names_its_source(tmp_path: Path, lacking: str) -> None:
    rows = tables(TEXTS)
    question = QUESTIONS["dev"][0]
    unknown_id = md5("没有这段话。")
    ranked_texts = [TEXTS[0]]
    if lacking == "release":
        rows["qrels", "dev"].append({"query-id": md5(question), "corpus-id": unknown_id, "score": 1})
    else:
        ranked_texts.append("没有这段话。")
    make_release(tmp_path / "release", rows)
    run_path = write_ranking(tmp_path / "hard.run", {question: ranked_texts})
    words = ["samples", "--release", tmp_path / "release", "--out", tmp_path / "nano", "--nano", "--extract"]
    error = error_of(run("builders", "add", words, "--hard", run_path, code=1))
    assert error == f"error: {tmp_path / lacking}: has a passage {unknown_id!r} that the release's corpus lacks"


@pytest.mark.slow
@pytest.mark.parametrize("hit_count", [6, 2])
def test_the_seed_draws_the_questions_of_a_nano_release(nano: Nano, tmp_path: Path, hit_count: int) -> None:
    for name, seed in (("nano", SEED), ("again", SEED), ("other", 4)):
        nano(tmp_path / name, hit_count, seed=seed)
    assert tree(tmp_path / "again") == tree(tmp_path / "nano")
    query_ids = set(open_release(tmp_path / "nano").texts("queries", "dev"))
    assert set(open_release(tmp_path / "other").texts("queries", "dev")) != query_ids


@pytest.mark.slow
def test_other_tools_read_a_nano_release(nano: Nano, tmp_path: Path) -> None:
    """The lines of docs/tools/sentence-transformers.md measure a model on the release as its vectors do."""
    from sentence_transformers import SentenceTransformer

    nano(tmp_path / "nano", 6)
    release = open_release(tmp_path / "nano")
    texts = release.texts("corpus", "corpus")
    queries = release.texts("queries", "dev")
    write_dual(tmp_path / "model", 1, "cosine", None, None, texts=list((texts | queries).values()))
    code = block("sentence-transformers", "python").replace("RELEASE", str(tmp_path / "nano"))
    variables: dict[str, Any] = {}
    exec(code.replace("MODEL", str(tmp_path / "model")), variables)
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    vectors = {passage_id: model.encode(text, normalize_embeddings=True) for passage_id, text in texts.items()}
    scores: dict[str, dict[str, float]] = {}
    for query_id, query in queries.items():
        query_vector = model.encode(query, normalize_embeddings=True)
        scores[query_id] = {passage_id: float(query_vector @ vector) for passage_id, vector in vectors.items()}
    qrels = [row for row in release.table("qrels", "dev").to_pylist() if row["score"] > 0]
    assert variables["results"]["dev_cosine_mrr@10"] == pytest.approx(reciprocal_rank(scores, qrels), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--nano --hard RUN", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --sizes 40", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--extract", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --extract sample-40", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --extract", 2, "expected --hard RUN..."),
        ("--nano --extract --hard RUN --split train dev", 2, "draws queries of one --split"),
        ("--nano --extract --hard RUN --split test", 1, "has no config 'qrels' with a split 'test'"),
        ("--nano --extract --hard RUN", 1, "has no query of --split; expected a run of these queries"),
    ],
)
def test_options_that_make_no_sample_are_one_line(
    large: Path, tmp_path: Path, words: str, code: int, message: str
) -> None:
    run_path = write_ranking(tmp_path / "hard.run", {"another": TEXTS[:2]})
    options = [run_path if word == "RUN" else word for word in words.split()]
    done = run("builders", "add", "samples", "--release", large, "--out", tmp_path / "out", options, code=code)
    assert message in (error_of(done) if code == 1 else done.stderr)
    assert not (tmp_path / "out").exists()
