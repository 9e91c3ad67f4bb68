"""Spoiled files that kinds of model keep and read."""

from __future__ import annotations

import json
from pathlib import Path

from fuzzing import Reader, fuzz_of
from spoil import JSON

from baselines.retrieve.index import RETRIEVERS
from baselines.retrieve.rerank import RERANKERS


def _model(folder: Path) -> None:
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "SentenceTransformer", "prompts": {}}')
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps([module]))
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 7}')


def _kind(folder: Path) -> tuple[str, str]:
    from baselines.retrieve.models import kind_of_model, kind_of_reranker
    from baselines.retrieve.settings import ModelSettings

    settings = ModelSettings(str(folder))
    return kind_of_model(settings), kind_of_reranker(settings)


READERS = [
    Reader(
        "a model's kind",
        reaches=("baselines.retrieve.models:kind_of_model", "baselines.retrieve.models:_config"),
        make=_model,
        spoils={"*.json": JSON},
        read=_kind,
        right=lambda found, *_: found[0] in {*RETRIEVERS, "cross"} and found[1] in RERANKERS,
    )
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
