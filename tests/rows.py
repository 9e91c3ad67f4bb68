"""Small raw DuReader rows for tests."""

import json
from pathlib import Path
from typing import Any


def row(number: int, question: str, documents: list[list[str]], answers: list[str] | None = None) -> dict[str, Any]:
    """Return a raw row with the given paragraphs, a list for each document. ``answers`` is omitted if None."""
    content: dict[str, Any] = {
        "question_id": number,
        "question": question,
        "question_type": "DESCRIPTION",
        "fact_or_opinion": "FACT",
        "documents": [
            {"title": f"标题{i}", "bs_rank_pos": i, "is_selected": i == 0, "paragraphs": paragraphs}
            for i, paragraphs in enumerate(documents)
        ],
    }
    return content if answers is None else content | {"answers": answers}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return path


def json_lines(path: Path) -> list[Any]:
    # splitlines() ends lines at more characters than any reader of JSON lines does.
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]
