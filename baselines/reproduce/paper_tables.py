"""The tables and the figure of Section 3 of the paper as functions, and the nine models of the pool (Section 2.3).

A table is a function that returns the runs of its rows by the rows' names, which ``published_scores.toml`` describes.
A run is a function that records the steps behind a row, so that only the steps of the selected rows run.
``do(VERB, ...)`` records a step (:class:`baselines.reproduce.steps.Steps`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from baselines.reproduce.steps import Step, Steps
from builders.core.errors import InputError

Runs = dict[str, Callable[[], Step]]

# --- The systems (Section 3.1, Figure 1) ---

TOP_K = 50  # passages that a retriever finds for each query
NEGATIVES = 4  # hard negatives for each positive passage (A.2)
# The settings of BM25 are explicit, so that the scores of a table do not depend on the defaults of the verb.
BM25: dict[str, Any] = {"top_k": TOP_K, "analyzer": "words", "stop_words": "keep", "k1": 1.2, "b": 0.75}


def bm25(do: Steps, split: str, set_name: str = "main") -> Step:
    return do("bm25", set=set_name, split=split, **BM25, out=in_set(set_name, f"bm25.{split}.run.gz"))


def mine(do: Steps, run: Step, name: str, *, set_name: str = "main", **options: Any) -> Step:
    """Sample hard negatives of the training queries from a run.

    ``name`` is the beginning of the output's name. ``options`` are further arguments of the verb `mine`.
    """
    arguments = {"top_k": TOP_K, "negatives": NEGATIVES, **options}
    return do("mine", set=set_name, split="train", run=run, **arguments, out=f"{name}.negatives.jsonl.gz")


def train(do: Steps, recipe: str, *, name: str = "", **inputs: Any) -> Step:
    """Train a recipe. If another recipe trains the starting checkpoint, that training comes first.

    ``recipe`` is without "-scratch", which is added with --scratch. ``name`` is the name of the checkpoint, if other
    than the recipe's. ``inputs`` are further arguments of the verb `train`.
    """
    start = do.starting_recipe(recipe + do.variant)
    if start and start not in TRAININGS:
        raise InputError(f"no step trains {start}, the starting checkpoint of {recipe + do.variant}")
    before = [TRAININGS[start](do)] if start else []
    return do("train", recipe=recipe + do.variant, **inputs, after=before, out=f"models/{name or recipe}{do.variant}")


def search(do: Steps, model: Step, split: str, set_name: str = "main") -> Step:
    """Encode a set's passages with a dual-encoder, and search them with the queries of ``split``."""
    # The English queries of the set crosslingual search the Chinese passages of main.
    corpus_set = "main" if set_name == "crosslingual" else set_name
    name = model.output.name
    passages = do("encode", set=corpus_set, model=model, out=f"embeddings/{in_set(corpus_set, name)}")
    out = in_set(set_name, f"{name}.{split}.run.gz")
    return do("search", set=set_name, split=split, model=model, passages=passages, top_k=TOP_K, out=out)


def rerank(do: Steps, run: Step, model: Step, retriever: str) -> Step:
    """Re-rank a run of ``do.split`` with a cross-encoder. ``retriever`` names the run in the output's name."""
    return do(
        "rerank", split=do.split, run=run, model=model, out=f"{model.output.name}.on-{retriever}.{do.split}.run.gz"
    )


def in_set(set_name: str, file_name: str) -> str:
    """Put the name of a set before a file name. The files of the set main have no prefix."""
    return file_name if set_name == "main" else f"{set_name}.{file_name}"


def bm25_negatives(do: Steps) -> Step:
    return mine(do, bm25(do, "train"), "bm25")


def dual_encoder(do: Steps) -> Step:
    """DE w/ BM25 Neg."""
    return train(do, "de-bm25-neg", negatives=[bm25_negatives(do)])


def dual_encoder_run(do: Steps) -> Step:
    return search(do, dual_encoder(do), do.split)


def cross_encoder(do: Steps) -> Step:
    """CE w/ BM25 Neg."""
    return train(do, "ce-bm25-neg", negatives=[bm25_negatives(do)], dev_run=bm25(do, "dev"))


def cross_encoder_run(do: Steps) -> Step:
    return rerank(do, bm25(do, do.split), cross_encoder(do), "bm25")


def cross_encoder_on_dense(do: Steps) -> Step:
    """CE w/ DE Neg."""
    model = dual_encoder(do)
    negatives = mine(do, search(do, model, "train"), model.output.name)
    return train(do, "ce-de-neg", negatives=[negatives], dev_run=bm25(do, "dev"))


# --- The models of the official code, trained on the hard negatives of the official data ---


def official_retrieval(do: Steps, split: str) -> Step:
    # The official recipes have no variant without pretrained weights. With --scratch, their rows are skipped.
    model = do("train", recipe="official-de", out="models/official-de")
    return search(do, model, split)


def official_reranking(do: Steps) -> Step:
    model = do("train", recipe="official-ce", dev_run=official_retrieval(do, "dev"), out="models/official-ce")
    return rerank(do, official_retrieval(do, do.split), model, "de")


# --- Section 3.3: retrieval and re-ranking ---


def table_4(do: Steps) -> Runs:
    """Retrieval: DE w/ BM25 Neg and the official dual-encoder against BM25."""
    return {
        "bm25": lambda: bm25(do, do.split),
        "de-bm25-neg": lambda: dual_encoder_run(do),
        "official-de": lambda: official_retrieval(do, do.split),
    }


def table_5(do: Steps) -> Runs:
    """Re-ranking of BM25's and of DE's top passages by CE w/ BM25 Neg and CE w/ DE Neg.

    The row official-ce has the official cross-encoder, which re-ranks the passages of the official dual-encoder.
    """
    return {
        "ce-bm25-neg-on-bm25": lambda: cross_encoder_run(do),
        "ce-de-neg-on-bm25": lambda: rerank(do, bm25(do, do.split), cross_encoder_on_dense(do), "bm25"),
        "ce-de-neg-on-de": lambda: rerank(do, dual_encoder_run(do), cross_encoder_on_dense(do), "de"),
        "official-ce": lambda: official_reranking(do),
    }


# --- Section 3.4: the strategies for the quality of the development and test sets ---


def table_6(do: Steps) -> Runs:
    """CE w/ BM25 Neg, trained with and without the questions that are similar to a dev or test question."""
    return {
        "with-similar-duplicated": lambda: similar_questions_run(do),
        "without-similar-duplicated": lambda: cross_encoder_run(do),
        "with-similar-others": lambda: similar_questions_run(do),
        "without-similar-others": lambda: cross_encoder_run(do),
    }


def similar_questions_run(do: Steps) -> Step:
    """Re-rank with CE w/ BM25 Neg, whose training also has the similar questions."""
    run = do("bm25", queries="train-similar", split="train", **BM25, out="bm25.train-similar.run.gz")
    similar_negatives = mine(do, run, "bm25.train-similar", queries="train-similar")
    model = train(
        do,
        "ce-bm25-neg",
        name="ce-bm25-neg-similar",
        negatives=[bm25_negatives(do), similar_negatives],
        dev_run=bm25(do, "dev"),
        set=["data.similar=true"],  # for `train`, --set changes a value of the recipe
    )
    return rerank(do, bm25(do, do.split), model, "bm25")


def figure_2(do: Steps) -> Runs:
    """The same runs, measured by the judgments before and after people corrected them."""
    return {
        "bm25-before": lambda: bm25(do, do.split),
        "bm25-after": lambda: bm25(do, do.split),
        "de-bm25-neg-before": lambda: dual_encoder_run(do),
        "de-bm25-neg-after": lambda: dual_encoder_run(do),
        "ce-bm25-neg-before": lambda: cross_encoder_run(do),
        "ce-bm25-neg-after": lambda: cross_encoder_run(do),
    }


# --- Section 3.6: out of domain (Table 7: cMedQA, Table 8: cCOVID-News) ---


def out_of_domain(do: Steps, set_name: str) -> Runs:
    """BM25, and DE w/ BM25 Neg without and with fine-tuning on the set's training queries.

    Every row searches with the set's test queries, because their labels are public.
    """
    return {
        "bm25": lambda: bm25(do, "test", set_name),
        "de-zero-shot": lambda: search(do, dual_encoder(do), "test", set_name),
        "de-fine-tuned": lambda: search(do, fine_tuned(do, set_name), "test", set_name),
    }


def fine_tuned(do: Steps, set_name: str) -> Step:
    negatives = mine(do, bm25(do, "train", set_name), f"{set_name}.bm25", set_name=set_name)
    return train(do, f"de-{set_name}", negatives=[negatives])


# --- Section 3.7: cross-lingual ---


def table_9(do: Steps) -> Runs:
    """English queries and Chinese passages: multilingual BERT, trained on English, Chinese, or both queries.

    Only the row zero-shot-monolingual searches with the Chinese queries.
    """
    return {
        "supervised": lambda: search(do, multilingual_model(do, "mbert-supervised"), do.split, "crosslingual"),
        "zero-shot": lambda: search(do, multilingual_model(do, "mbert-zero-shot"), do.split, "crosslingual"),
        "zero-shot-monolingual": lambda: search(do, multilingual_model(do, "mbert-zero-shot"), do.split),
        "transferred": lambda: search(do, multilingual_model(do, "mbert-transferred"), do.split, "crosslingual"),
    }


def multilingual_model(do: Steps, recipe: str) -> Step:
    """Multilingual BERT, trained on Chinese queries (zero-shot), on English queries (supervised), or on both."""
    if recipe == "mbert-zero-shot":
        return train(do, recipe, negatives=[bm25_negatives(do)])
    # The negatives of the English queries come from the run of the Chinese queries.
    negatives = mine(do, bm25(do, "train"), "crosslingual", set_name="crosslingual")
    return train(do, recipe, negatives=[negatives])


# --- Section 2.3, A.1: the nine models of the pool, five retrievers and four re-rankers that learn from the pool ---

POOL_MODELS = ("ernie", "bert", "roberta", "macbert")
POOL_SIZE = 5 * TOP_K  # the five retrievers find at most this number of passages for a query


def pool(do: Steps) -> Runs:
    """The nine models. The re-rankers order the pool's candidates."""
    runs: Runs = {"pool-bm25": lambda: bm25(do, do.split)}
    for name in POOL_MODELS:
        runs[f"pool-de-{name}"] = partial(pool_retrieval, do, name, do.split)
    for name in POOL_MODELS:
        runs[f"pool-ce-{name}"] = partial(pool_reranking, do, name)
    return runs


def pool_retrieval(do: Steps, name: str, split: str) -> Step:
    """Search with a dual-encoder of the pool. The dual-encoder from ERNIE is DE w/ BM25 Neg."""
    model = dual_encoder(do) if name == "ernie" else train(do, f"de-{name}", negatives=[bm25_negatives(do)])
    return search(do, model, split)


def pool_runs(do: Steps, split: str) -> list[Step]:
    return [bm25(do, split), *(pool_retrieval(do, name, split) for name in POOL_MODELS)]


def pool_candidates(do: Steps, split: str) -> Step:
    """All passages that one of the five retrievers finds."""
    out = f"pool{do.variant}.{split}.run.gz"
    return do("annotate pool", action="candidates", split=split, runs=pool_runs(do, split), out=out)


def pool_reranking(do: Steps, name: str) -> Step:
    """Train a cross-encoder on negatives from the pool of the training queries, and re-rank the candidates."""
    negatives = mine(do, pool_candidates(do, "train"), f"pool{do.variant}", top_k=POOL_SIZE)
    model = train(do, f"ce-pool-{name}", negatives=[negatives], dev_run=bm25(do, "dev"))
    candidates = pool_candidates(do, do.split)
    out = f"{model.output.name}.{do.split}.run.gz"
    return do("rerank", split=do.split, run=candidates, top_k=POOL_SIZE, model=model, out=out)


def select_pool(do: Steps) -> Step:
    """Select each query's best 5 passages for people to judge, by the mean score of the four re-rankers."""
    scores = [pool_reranking(do, name) for name in POOL_MODELS]
    return do(
        "annotate pool",
        action="select",
        split=do.split,
        runs=pool_runs(do, do.split),
        scores=scores,
        out=f"pool{do.variant}.{do.split}.jsonl.gz",
    )


TABLES: dict[int, Callable[[Steps], Runs]] = {
    4: table_4,
    5: table_5,
    6: table_6,
    7: partial(out_of_domain, set_name="cmedqa"),
    8: partial(out_of_domain, set_name="ccovid"),
    9: table_9,
}
FIGURES = {2: figure_2}
# The recipes whose checkpoints other recipes start from (``start = "recipe:NAME"``), and functions that train them.
TRAININGS: dict[str, Callable[[Steps], Step]] = {
    # A small BERT that replaces pretrained weights with --scratch.
    "mlm": partial(train, recipe="mlm"),
    "de-bm25-neg": dual_encoder,
    "ce-bm25-neg": cross_encoder,
    "ce-de-neg": cross_encoder_on_dense,
    "mbert-zero-shot": partial(multilingual_model, recipe="mbert-zero-shot"),
}
