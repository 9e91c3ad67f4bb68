"""models.toml: every value has its source, every model one family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baselines.retrieve.families import families, family_of, read_families
from builders.common.command import InputError

ONE = """
[families.a]
models = ["ORG/one"]
query_prompt = "query: "
said.query_prompt = "place"

[sources.place]
repository = "ORG/repository"
file = "README.md"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_families_that_people_ask_for_are_declared() -> None:
    names = (
        "BAAI/bge-large-zh-v1.5",
        "thenlper/gte-large-zh",
        "Qwen/Qwen3-Embedding-8B",
        "TencentBAC/Conan-embedding-v1",
    )
    found = [
        family_of(name) for name in (*names, "intfloat/multilingual-e5-small", "Alibaba-NLP/gte-multilingual-base")
    ]
    assert found == ["bge-zh", "gte-zh", "qwen3-embedding", "conan", "e5-multilingual", "gte-multilingual"]


def test_prompts_are_declared_byte_for_byte() -> None:
    found = {name: (family.query_prompt, family.passage_prompt) for name, family in families().items()}
    task = "Given a Chinese search query, retrieve web passages that answer the question"
    assert found["bge-zh"] == ("为这个句子生成表示以用于检索相关文章：", "")
    assert found["e5-multilingual"] == ("query: ", "passage: ")
    # Qwen3 has no blank after "Query:", the others have one.
    asked = "Given a web search query, retrieve relevant passages that answer the query"
    assert found["qwen3-embedding"] == (f"Instruct: {asked}\nQuery:", "")
    assert families()["qwen3-embedding"].prompts == {
        "duretrieval": f"Instruct: {task}\nQuery:",
        "mteb": "Instruct: Retrieval relevant passage for the given query.\nQuery:",
    }
    assert found["gte-qwen2"] == found["e5-multilingual-instruct"] == (f"Instruct: {task}\nQuery: ", "")
    assert found["bge-m3"] == found["gte-zh"] == found["conan"] == ("", "")


def test_a_name_is_known_in_any_case_and_a_folder_by_its_own_name(tmp_path: Path) -> None:
    assert family_of("baai/BGE-small-zh-v1.5") == "bge-zh"
    (tmp_path / "bge-small-zh-v1.5").mkdir()
    assert family_of(str(tmp_path / "bge-small-zh-v1.5")) == "bge-zh"
    (tmp_path / "gte-base-zh").symlink_to(tmp_path / "bge-small-zh-v1.5")
    assert family_of(str(tmp_path / "gte-base-zh")) == "gte-zh"
    assert family_of(str(tmp_path)) == family_of("ORG/bge-small-zh-v1.5") == ""


def test_every_source_is_a_file_of_a_repository() -> None:
    for name, source in read_families().sources.items():
        assert re.fullmatch(r"(hub: )?[\w.-]+/[\w.-]+", source.repository), name
        assert source.commit or source.file.startswith("issue ") or source.repository.startswith("hub: "), name


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('said.query_prompt = "place"', "said = {}", "families.a: query_prompt: expected a value and, in `said`"),
        ('query_prompt = "query: "\n', "", "families.a: query_prompt: expected a value"),
        ('said.query_prompt = "place"', 'said.query_prompt = "other"', "no source is named 'other'"),
        ('"ORG/one"]', '"ORG/one"]\nlength = 3', "families.a: unknown key 'length'; expected models"),
        ('"ORG/one"]', '"ORG/one"]\npooling = "max"', "pooling: expected one of"),
        ("[sources.place]", '[families.b]\nmodels = ["org/ONE"]\nsaid = {}\n[sources.place]', "org/ONE is of a"),
        (
            "[sources.place]",
            '[sources.more]\nrepository = "a/b"\nfile = "c"\n[sources.place]',
            "sources.more: no value",
        ),
    ],
)
def test_a_declaration_that_is_not_whole_is_refused(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert list(read_families(written(tmp_path, ONE)).families) == ["a"]
    with pytest.raises(InputError, match=re.escape(error)):
        read_families(written(tmp_path, ONE.replace(old, new)))
