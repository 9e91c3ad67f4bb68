"""Compare smaller embeddings: MRR@10 and Recall@50 against the bytes of a passage.

Each set is given as NAME=RELEASE. The split dev is searched. Passages are encoded once, in 16 bits, into the folder
--work, and converted from there, so a second call encodes nothing. The searches are those of ``SEARCHES``. A row has
two numbers of bytes for each passage: of the embeddings that every search reads, and of the embeddings beside them, of
which only the candidates are read.

Example:

  python benchmarks/small_vectors.py demo=build/demo cmrc=build/cmrc --model MODEL --work build/small --max-length 96
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import machine, parser_of, write_json

from baselines.measure.evaluate import evaluate_runs
from baselines.retrieve.encode import encode_texts
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.search_vectors import search_vectors
from builders.core.tables import markdown_table

TOP_K = 50  # passages of a run


@dataclass(frozen=True)
class Search:
    """A search: the form of the passages' embeddings, the factor of --rescore, and the form of --rescore-with.

    None is an option that is not given.
    """

    store: str
    rescore: int | None = None
    rescore_with: str | None = None


SEARCHES = [
    Search("float16"),
    Search("int8"),
    Search("int8", 4, "float16"),
    Search("binary"),
    Search("binary", 1),
    Search("binary", 4),
    Search("binary", 1, "int8"),
    Search("binary", 4, "int8"),
    Search("binary", 4, "float16"),
]


def measure_set(release: Path, work: Path, *, model: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Encode a release into ``work`` and return the figures of each search.

    ``options`` are further parameters of :func:`encode_texts`, by name.
    """
    folders = {}
    for store in ("float16", "int8", "binary"):
        folders[store] = work / store
        reuse = None if store == "float16" else folders["float16"]
        encode_texts(release, model=model, out=folders[store], store=store, reuse=reuse, **options)
    queries = work / "queries"
    encode_texts(release, model=model, out=queries, queries=True, **options)
    rows = []
    for search in SEARCHES:
        larger_folder = folders[search.rescore_with] if search.rescore_with else None
        run = search_vectors(
            release,
            passages=folders[search.store],
            queries=queries,
            top_k=TOP_K,
            rescore=search.rescore,
            rescore_with=larger_folder,
        )
        (figures,) = evaluate_runs([run], release=release).value
        beside_bytes = 0 if larger_folder is None else open_vectors(larger_folder).bytes_per_row
        rows.append(
            {
                "store": search.store,
                "rescore": search.rescore,
                "rescore_with": search.rescore_with,
                "bytes": open_vectors(folders[search.store]).bytes_per_row,
                "bytes_beside": beside_bytes,
                "passages": open_vectors(folders[search.store]).rows,
                "queries": figures["queries"],
                "MRR@10": figures["official"]["MRR@10"],
                "Recall@50": figures["official"]["recall@50"],
            }
        )
    return rows


def print_table(figures: dict[str, list[dict[str, Any]]]) -> None:
    """Print the searches as lines and the sets as columns, in Markdown."""
    columns = ["passages", "--rescore", "--rescore-with", "bytes", "beside"]
    for name in figures:
        columns += [f"{name} MRR@10", f"{name} Recall@50"]
    table_rows = []
    for rows_of_search in zip(*figures.values(), strict=True):
        first = rows_of_search[0]
        cells = [first["store"], first["rescore"] or "", first["rescore_with"] or "", first["bytes"]]
        cells.append(first["bytes_beside"] or "")
        for row in rows_of_search:
            cells += [f"{100 * row['MRR@10']:.2f}", f"{100 * row['Recall@50']:.2f}"]
        table_rows.append([str(cell) for cell in cells])
    print(markdown_table(columns, table_rows, left=3))


def parse_set(text: str) -> tuple[str, Path]:
    """Return the name and the release of NAME=RELEASE."""
    name, separator, folder = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=RELEASE, found {text}")
    return name, Path(folder)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="+", type=parse_set, metavar="NAME=RELEASE")
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the embeddings")
    parser.add_argument("--max-length", type=int, help="tokens of a text (default: the model's)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options = {"max_length": arguments.max_length}
    figures = {}
    for name, release in arguments.sets:
        figures[name] = measure_set(release, arguments.work / name, model=arguments.model, options=options)
    print_table(figures)
    write_json(arguments.json, {"machine": machine("numpy", "faiss-cpu"), "sets": figures})


if __name__ == "__main__":
    main()
