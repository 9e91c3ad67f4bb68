"""Build a release whose passages are cut by your own function.

    python examples/chunker.py --raw builders/sample
    python examples/chunker.py --raw dureader-2.0-demo --out build/examples/chunked-demo

Replace ``cut_document``. The paper joins paragraphs until a passage has 256 characters (Section 2.2.2). The program
prints for how many questions the first 256 or 1,024 characters of BM25's hits contain an answer.
"""

import argparse
import gzip
import json
import re
import tempfile
from pathlib import Path

from baselines import evaluate_runs, search_bm25
from builders import build_release

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--raw", default="builders/sample", help="folder with raw DuReader rows: *.json or *.json.gz")
parser.add_argument("--out", default="build/examples/chunked", help="the new release directory")
options = parser.parse_args()

SENTENCES_PER_PASSAGE = 3


def cut_document(paragraphs: list[str]) -> list[str]:
    """Cut a document into passages of some sentences. The next passage begins with the last sentence again."""
    sentences = [sentence for sentence in re.split(r"(?<=[。！？!?])", "".join(paragraphs)) if sentence.strip()]
    starts = range(0, max(len(sentences) - 1, 1), SENTENCES_PER_PASSAGE - 1)
    return ["".join(sentences[start : start + SENTENCES_PER_PASSAGE]) for start in starts]


raw_paths = sorted([*Path(options.raw).rglob("*.json"), *Path(options.raw).rglob("*.json.gz")])
if not raw_paths:
    parser.error(f"--raw {options.raw}: has no *.json or *.json.gz")
with tempfile.TemporaryDirectory() as cut_folder:
    for raw_path in raw_paths:
        open_raw = gzip.open if raw_path.suffix == ".gz" else open
        # The file's name says the split: search.dev.json.
        cut_path = Path(cut_folder, str(raw_path.relative_to(options.raw)).removesuffix(".gz"))
        cut_path.parent.mkdir(parents=True, exist_ok=True)
        with open_raw(raw_path, "rt", encoding="utf-8") as rows, open(cut_path, "w", encoding="utf-8") as cut_rows:
            for line in rows:
                if not line.strip():
                    continue
                row = json.loads(line)
                for document in row["documents"]:
                    document["paragraphs"] = cut_document(document["paragraphs"])
                    document.pop("segmented_paragraphs", None)  # the words of the old paragraphs
                cut_rows.write(json.dumps(row, ensure_ascii=False) + "\n")

    # With one character as the shortest passage, nothing is joined: every piece of `cut_document` is a passage.
    release = build_release(raw=[cut_folder], out=options.out, min_chars=1)
run = search_bm25(release, split="dev")
print(evaluate_runs([run], release=release, answers=True, budget=[256, 1024]))
