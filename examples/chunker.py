"""Build a release whose passages are cut by your own function, and measure how much of it must be read.

    python examples/chunker.py --raw builders/sample

Replace ``cut_document``. The paper joins paragraphs until a passage has 256 characters (Section 2.2.2).
"""

import argparse
import json
import re
from pathlib import Path

from baselines import evaluate_runs, search_bm25
from builders import build_release

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--raw", default="builders/sample", help="folder with raw DuReader rows (JSON lines)")
parser.add_argument("--out", default="build/examples/chunked", help="the new release directory")
options = parser.parse_args()

SENTENCES = 3  # of a passage


def cut_document(paragraphs: list[str]) -> list[str]:
    """Cut a document into passages of three sentences. The next passage begins with the last sentence again."""
    sentences = [sentence for sentence in re.split(r"(?<=[。！？!?])", "".join(paragraphs)) if sentence.strip()]
    starts = range(0, max(len(sentences) - 1, 1), SENTENCES - 1)
    return ["".join(sentences[start : start + SENTENCES]) for start in starts]


cut_folder = Path(options.out).with_name("chunked-raw")
cut_folder.mkdir(parents=True, exist_ok=True)
for raw_path in sorted(Path(options.raw).glob("*.json")):
    lines = []
    for line in raw_path.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        row = json.loads(line)
        for document in row["documents"]:
            document["paragraphs"] = cut_document(document["paragraphs"])
            document.pop("segmented_paragraphs", None)  # the words of the old paragraphs
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    (cut_folder / raw_path.name).write_text("".join(lines), encoding="utf-8")

# With one character as the shortest passage, nothing is joined: every piece of `cut_document` is a passage.
release = build_release(raw=[cut_folder], out=options.out, min_chars=1)
run = search_bm25(release, split="dev")
print(evaluate_runs([run], release=release, answers=True, budget=[256, 1024]))
