"""Spoiled files that kinds of model keep and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import Reader, fuzz_of, same
from spoil import BYTES, JSON

from baselines.retrieve.kinds import RERANKERS, RETRIEVERS
from builders.core.files import sha256_of

_ABOUT = {"name": "dureader_retrieval index", "format": 1, "kind": "sparse", "part_rows": 2, "model": {"name": "m"}}


def _index(folder: Path) -> None:
    files = {}
    for number in range(2):
        part = folder / f"part-{number:05d}"
        part.mkdir()
        np.save(part / "rows.npy", np.arange(number, number + 5))
        files[f"{part.name}/rows.npy"] = sha256_of(part / "rows.npy")
    (folder / "index.json").write_text(json.dumps({**_ABOUT, "files": files}))


def _read_index(folder: Path) -> Any:
    from baselines.retrieve.index import open_parts

    return [(part.start, part.array("rows").tolist()) for part in open_parts(folder, _ABOUT, 4)]


def _model(folder: Path) -> None:
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "SentenceTransformer", "prompts": {}}')
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps([module]))
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 7}')


def _kind(folder: Path) -> tuple[str, str]:
    from baselines.retrieve.detect_kind import kind_of_model, kind_of_reranker
    from baselines.retrieve.settings import ModelSettings

    settings = ModelSettings(str(folder))
    return kind_of_model(settings), kind_of_reranker(settings)


READERS = [
    Reader(
        "an index in parts",
        reaches=("baselines.retrieve.index:read", "baselines.retrieve.index:array"),
        make=_index,
        spoils={"index.json": JSON, "*/*.npy": BYTES},
        read=_read_index,
        right=same,
    ),
    Reader(
        "a model's kind",
        reaches=("baselines.retrieve.detect_kind:kind_of_model", "baselines.retrieve.detect_kind:_config"),
        make=_model,
        spoils={"*.json": JSON},
        read=_kind,
        right=lambda found, *_: found[0] in {*RETRIEVERS, "cross"} and found[1] in RERANKERS,
    ),
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
