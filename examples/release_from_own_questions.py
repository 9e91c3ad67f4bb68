"""Build a release from your own questions and web pages, and load it with ``datasets``.

    python examples/release_from_own_questions.py --out build/examples/own

The rows have the format of raw DuReader 2.0: a question, answers, and documents with paragraphs.
"""

import argparse
import json
from pathlib import Path

import datasets

import dureader_retrieval  # noqa: F401 (makes the name known to load_dataset)
from builders import build_release

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", default="build/examples/own", help="the new release directory")
options = parser.parse_args()

garden = {"title": "养花手册", "is_selected": True, "paragraphs": ["君子兰夹箭时,白天放在二十度的屋里,晚上端到阳台。"]}
bicycle = {"title": "修车摊", "is_selected": True, "paragraphs": ["内胎漏气先泡水找气泡,锉毛以后再贴补片。"]}
rows = [
    {
        "question_id": 1,
        "question": "君子兰夹箭怎么办",
        "answers": ["白天放在二十度的屋里,晚上端到阳台。"],
        "documents": [garden, bicycle | {"is_selected": False}],
    },
    {
        "question_id": 2,
        "question": "自行车内胎漏气怎么补",
        "answers": ["泡水找气泡,锉毛以后再贴补片。"],
        "documents": [bicycle, garden | {"is_selected": False}],
    },
]
raw_folder = Path(f"{options.out}-raw")
raw_folder.mkdir(parents=True, exist_ok=True)
lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
(raw_folder / "search.dev.json").write_text("".join(lines), encoding="utf-8")

# A paragraph is positive if one of its spans reaches an F1 of 0.5 with an answer (the paper's Section 2.2.2).
build_release(raw=[raw_folder], out=options.out)

for row in datasets.load_dataset("dureader_retrieval", "dev", data_dir=options.out, split="dev"):
    print(row["query"], "->", [passage["text"] for passage in row["positive_passages"]])
