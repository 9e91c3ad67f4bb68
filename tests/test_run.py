"""`run`: any model in one command, with its family's settings from models.toml, and the run's manifest."""

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Done, run
from hub_server import Hub
from msgspec import structs
from releases import QUESTIONS, TEXTS, make_release, md5
from tiny_families import END, as_text, publish, with_modules, write_encoder
from tiny_models import write_cross
from transformers import AutoModel, AutoTokenizer

from baselines.retrieve import encoder
from baselines.retrieve.families import WITH
from baselines.retrieve.family_table import family_of, read_families
from baselines.retrieve.model_files import shown_name
from builders.core.read_files import sha256_of
from builders.store.runs import read_run

pytestmark = pytest.mark.usefixtures("own_cache")
BGE = "BAAI/bge-small-zh-v1.5"
REMOTE_GTE = "Alibaba-NLP/gte-multilingual-base"
SNAPSHOT = f"snapshots/{'0' * 40}"  # the last parts of a folder of the hub's cache
TASK = "Given a Chinese search query, retrieve web passages that answer the question"
ASKED = "Given a web search query, retrieve relevant passages that answer the query"
# By model: the input of a query and of a passage, and the pooling.
ENCODED = {
    BGE: ("[CLS]为这个句子生成表示以用于检索相关文章：{}[SEP]", "[CLS]{}[SEP]", "cls"),
    "TencentBAC/Conan-embedding-v1": ("[CLS]{}[SEP]", "[CLS]{}[SEP]", "mean"),
    "intfloat/multilingual-e5-large": ("<s>query: {}</s>", "<s>passage: {}</s>", "mean"),
    "alibaba-nlp-community/gte-multilingual-base": ("<s>{}</s>", "<s>{}</s>", "cls"),
    "Alibaba-NLP/gte-Qwen2-1.5B-instruct": (f"Instruct: {TASK}\nQuery: {{}}{END}", f"{{}}{END}", "lasttoken"),
    "Qwen/Qwen3-Embedding-0.6B": (f"Instruct: {ASKED}\nQuery:{{}}{END}", f"{{}}{END}", "lasttoken"),
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "release"
    make_release(folder)
    return folder


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The model's inputs as texts with special tokens, without padding."""
    input_texts: list[str] = []
    preprocess = encoder.preprocess

    def preprocess_and_record(model: Any, texts: list[str], **options: Any) -> dict[str, Any]:
        tokens = preprocess(model, texts, **options)
        for row, mask in zip(tokens["input_ids"].tolist(), tokens["attention_mask"].tolist(), strict=True):
            token_ids = list(itertools.compress(row, mask))
            input_texts.append(as_text(model.tokenizer, token_ids))
        return tokens

    monkeypatch.setattr(encoder, "preprocess", preprocess_and_record)
    return input_texts


def run_model(model: Path | str, release: Path, out: Path, *words: object, code: int = 0) -> Done:
    """Run the model on the CPU in full precision."""
    usual_words = ["--release", release, "--out", out, "--device", "cpu", "--dtype", "fp32"]
    return run("baselines", "run", model, usual_words, words, code=code)


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest of a run."""
    return json.loads(out.with_name(f"{out.name}.manifest.json").read_text(encoding="utf-8"))


def used_settings(out: Path) -> dict[str, Any]:
    """Return the values of the settings that a run's manifest records."""
    return {name: setting["value"] for name, setting in read_manifest(out)["used"].items()}


def by_hand(folder: Path, queries: list[str], passages: list[str], pooling: str) -> torch.Tensor:
    """Return cosines, shape (queries, passages), by plain transformers, one text at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in queries + passages:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            states = model(input_ids=ids).last_hidden_state[0]
        rows.append({"cls": states[0], "mean": states.mean(0), "lasttoken": states[-1]}[pooling])
    unit = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    return unit[: len(queries)] @ unit[len(queries) :].T


def expect_as_declared(name: str, model: Path, out: Path, encoded: list[str]) -> None:
    """Check the model's inputs, byte for byte, and compare its scores with transformers, pooled by hand."""
    query, passage, pooling = ENCODED[name]
    queries = [query.format(text) for text in QUESTIONS["dev"]]
    passages = [passage.format(text) for text in TEXTS]
    # The longest text is found by inputs with repeated characters.
    assert {text for text in encoded if "的 的" not in text} == set(queries + passages)
    hits = read_run(out).hits
    score_rows = []
    for question in QUESTIONS["dev"]:
        scores_by_id = dict(hits[md5(question)])
        score_rows.append([scores_by_id[md5(text)] for text in TEXTS])
    scores = torch.tensor(score_rows)
    differences = {}
    for way in ("cls", "mean", "lasttoken"):
        differences[way] = (scores - by_hand(model, queries, passages, way)).abs().max()
    assert min(differences, key=differences.__getitem__) == pooling, differences
    assert differences[pooling] < 2e-3, differences
    assert used_settings(out)["pooling"] == pooling
    assert read_manifest(out)["model"]["family"] != "none"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENCODED if name != BGE])
def test_a_declared_model_alone_is_right(name: str, release: Path, tmp_path: Path, encoded: list[str]) -> None:
    model, out = write_encoder(tmp_path, name), tmp_path / "run"
    trusted = ["--trust-remote-code"] if name.startswith("Alibaba-NLP/") else []
    run_model(model, release, out, *trusted)
    expect_as_declared(name, model, out, encoded)


def test_a_hub_model(hub: Hub, call: Callable[..., Done], release: Path, tmp_path: Path, encoded: list[str]) -> None:
    model, out = write_encoder(tmp_path, BGE), tmp_path / "run"
    commit = publish(hub, BGE, model)
    call("run", BGE, "--release", release, "--out", out, "--device", "cpu", "--dtype", "fp32")
    expect_as_declared(BGE, model, out, encoded)
    run_manifest = read_manifest(out)
    assert (run_manifest["model"]["name"], run_manifest["model"]["commit"]) == (BGE, commit.oid)
    assert run_manifest["tag"].startswith(f"{BGE}@{commit.oid[:8]}:")


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_encoder(tmp_path_factory.mktemp("unknown"), BGE)
    prompts = {"query": "问：", "short": "找："}
    return with_modules(folder.rename(folder.with_name("my-model")), "mean", prompts=prompts, normalize=True)


def test_options_are_used_and_recorded(unknown: Path, release: Path, tmp_path: Path, encoded: list[str]) -> None:
    out = tmp_path / "mine.run"
    words = ["--query-prompt", "查：", "--passage-prompt", "文：", "--pooling", "cls", "--max-length", 9]
    done = run_model(unknown, release, out, *words, "--truncate-dim", 8, "--no-normalize", "--top-k", 3)
    assert set(encoded) >= {"[CLS]查：高铁票提前[SEP]", "[CLS]文：北京的冬天[SEP]"}
    run_manifest = read_manifest(out)
    lengths = {"max_length": 9, "query_length": None, "passage_length": None, "truncate_dim": 8}
    prompts = {"query_prompt": "查：", "passage_prompt": "文："}
    vectors = {"pooling": "cls", "normalize": False, "similarity": "dot"}
    assert used_settings(out) == prompts | lengths | vectors
    sources = {name: setting["says"] for name, setting in run_manifest["used"].items()}
    assert (sources["pooling"], sources["normalize"]) == ("--pooling", "--no-normalize")
    assert (run_manifest["top_k"], run_manifest["kind"], run_manifest["split"], run_manifest["run"]["lines"]) == (
        3,
        "dense",
        "dev",
        6,
    )
    assert str(tmp_path) not in json.dumps(run_manifest) and run_manifest["run"]["sha256"] == sha256_of(out)
    (header,) = [line for line in done.stdout.splitlines() if line.startswith("query prompt")]
    assert header.split() == ["query", "prompt", '"查："', "--query-prompt"]
    assert {line.split()[5] for line in out.read_text().splitlines()} == {run_manifest["tag"]}
    assert run_manifest["tag"].startswith("my-model:")


def test_a_checkpoint_of_the_project_needs_no_family(unknown: Path, release: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(unknown, tmp_path / "de-bm25-neg"))
    assert "has no family in models.toml" in run_model(checkpoint, release, tmp_path / "one.run", "--quiet").stderr
    (checkpoint / "recipe.json").write_text('{"model": {"kind": "dual"}}', encoding="utf-8")
    assert run_model(checkpoint, release, tmp_path / "two.run", "--quiet").stderr == ""


def test_a_model_of_no_family_uses_its_files(unknown: Path, release: Path, tmp_path: Path, encoded: list[str]) -> None:
    done = run_model(unknown, release, tmp_path / "run", "--quiet")
    (line,) = done.stderr.strip().splitlines()
    assert line.endswith("has no family in models.toml; its settings are from options and its files")
    assert [line.split() for line in done.stdout.splitlines() if line.startswith(("query prompt", "pooling"))] == [
        ["query", "prompt", '"问："', "the", "model's", "own", "files"],
        ["pooling", "mean", "the", "model's", "own", "files"],
    ]
    assert set(encoded) >= {f"[CLS]问：{QUESTIONS['dev'][0]}[SEP]", f"[CLS]{TEXTS[0]}[SEP]"}


def test_prompts_have_names_in_the_model_or_the_family(unknown: Path, release: Path, tmp_path: Path) -> None:
    run_model(unknown, release, tmp_path / "one", "--prompt-name", "short")
    assert used_settings(tmp_path / "one")["query_prompt"] == "找："
    run_model(unknown, release, tmp_path / "two", "--prompt-name", "duretrieval", "--family", "bge-multilingual-gemma2")
    assert used_settings(tmp_path / "two")["query_prompt"] == f"<instruct>{TASK}\n<query>"


def test_what_cannot_be_used_so_is_one_error(unknown: Path, release: Path, tmp_path: Path) -> None:
    for model, words, message in (
        (unknown, ["--prompt-name", "long"], "has no prompt 'long'; its prompts: 'document', 'query', 'short'"),
        (unknown, ["--family", "bge"], "--family bge: expected none or one of bge-zh"),
        (write_cross(tmp_path / "cross"), [], "is a re-ranker (cross); add --over RUN"),
        ("Alibaba-NLP/gte-multilingual-base", [], "add --trust-remote-code, or use alibaba-nlp"),
    ):
        assert message in run_model(model, release, tmp_path / "run", *words, code=1).error


def test_a_models_pooling_takes_precedence_over_its_family(release: Path, tmp_path: Path) -> None:
    done = run_model(with_modules(write_encoder(tmp_path, BGE), "mean"), release, tmp_path / "run", "--quiet")
    assert "have pooling mean, but models.toml (bge-zh) has cls" in done.stderr
    assert used_settings(tmp_path / "run")["pooling"] == "mean"


def test_a_split_without_judgments_gets_a_run_and_no_figures(unknown: Path, release: Path, tmp_path: Path) -> None:
    done = run_model(unknown, release, tmp_path / "run", "--split", "test")
    assert "the split test has no judgments" in done.stderr and "MRR" not in done.stdout
    assert list(read_run(tmp_path / "run").hits) == [md5(QUESTIONS["test"][0])]


def test_a_folder_of_the_hubs_cache_is_known_by_its_name_on_the_hub(release: Path, tmp_path: Path) -> None:
    plain = write_encoder(tmp_path, BGE)
    folder = tmp_path / "hub" / f"models--{BGE.replace('/', '--')}" / SNAPSHOT
    folder.mkdir(parents=True)
    for path in plain.iterdir():
        (folder / path.name).symlink_to(path)  # the library links to the folder blobs
    run_model(folder, release, tmp_path / "run")
    assert read_manifest(tmp_path / "run")["model"]["name"] == BGE
    settings = {"query_prompt": "为这个句子生成表示以用于检索相关文章：", "pooling": "cls", "max_length": 512}
    assert {key: used_settings(tmp_path / "run")[key] for key in settings} == settings
    (tmp_path / "link").symlink_to(folder)
    assert family_of(str(tmp_path / "link")) == "bge-zh"
    assert shown_name(str(tmp_path / "link")) == BGE


@pytest.mark.parametrize(
    ("folder", "name", "family"),
    [
        (f"models--intfloat--multilingual-e5-small/{SNAPSHOT}", "intfloat/multilingual-e5-small", "e5-multilingual"),
        (f"models--Alibaba-NLP--gte-multilingual-base/{SNAPSHOT}", REMOTE_GTE, "gte-multilingual"),
        (f"models--org--bge-small-zh-v1.5/{SNAPSHOT}", "org/bge-small-zh-v1.5", ""),
        (f"models--bert-base-chinese/{SNAPSHOT}", "bert-base-chinese", ""),
        ("models--BAAI--bge-m3/snapshots/main", "main", ""),
        ("modelscope/hub/models/BAAI/bge-small-zh-v1___5", "bge-small-zh-v1.5", "bge-zh"),
    ],
)
def test_folders_of_downloads_have_names(tmp_path: Path, folder: str, name: str, family: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert (shown_name(str(tmp_path / folder)), family_of(f"{tmp_path / folder}/")) == (name, family)


def test_a_name_is_known_in_any_case_and_a_folder_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "bge-small-zh-v1.5").mkdir()
    assert family_of(str(tmp_path / "bge-small-zh-v1.5")) == family_of("baai/BGE-small-zh-v1.5") == "bge-zh"
    assert family_of(str(tmp_path)) == family_of("ORG/bge-small-zh-v1.5") == ""


def test_every_value_has_a_source_and_every_source_a_file_of_a_repository() -> None:
    source_names: set[str] = set()
    models: list[str] = []
    for name, family in read_families().families.items():
        settings = {setting for setting, value in structs.asdict(family).items() if value not in (None, False, {})}
        assert settings - {"models", "said"} == family.said.keys(), name
        for names in family.said.values():
            source_names.update(names.split(WITH))
        models += [model.casefold() for model in family.models]
    assert source_names == read_families().sources.keys()
    assert len(set(models)) == len(models)
    for name, source in read_families().sources.items():
        assert re.fullmatch(r"(hub: )?[\w.-]+/[\w.-]+", source["repository"]), name
        by_name = source["file"].startswith("issue ") or source["repository"].startswith("hub: ")
        assert by_name or source.get("commit"), name
