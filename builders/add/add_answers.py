"""Add people's answers and the types of the questions from raw DuReader.

The config `answers` has a row for each query whose text is the question of a raw row. The row has the answers, the type
of the question (ENTITY, DESCRIPTION or YES_NO; FACT or OPINION), the service where the question was asked (search or
zhidao, from the file's name), and the judged passages that contain each answer. A passage contains an answer if one of
the passage's spans reaches --threshold of span-F1 with the answer (Algorithm 1).

`release` also writes this config. `add answers` adds the config to any release, for example one of the official
archives. A raw file may belong to any split. Earlier answers of the release are replaced.

example:
  python -m builders add answers --raw builders/sample --release build/sample --out build/with-answers
"""

import argparse
from pathlib import Path
from typing import Any

from builders.core.command import add_format
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.tables import print_result
from builders.store.layout import SPLITS, text_id
from builders.text.span_options import Options, add_rule, raw_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--raw", nargs="+", type=raw_path, required=True, metavar="PATH", help="raw rows of DuReader 2.0")
    add("--release", type=Path, required=True, metavar="DIR", help="release with the queries")
    add("--out", type=Path, required=True, metavar="DIR", help="new release (may be --release)")
    add_rule(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.store.stored_answers import answers_text

    options = Options(args.unit, args.threshold, segmenter=args.segmenter)
    stats = add_answers(args.release, args.raw, args.out, options)
    matched = [
        f"{split}: {found['matched']:,} of {found['queries']:,} queries have a raw row"
        for split, found in stats["matched"].items()
    ]
    print_result(stats, "\n".join([*matched, answers_text(stats["answers"]), f"release: {args.out}"]), args.format)


def add_answers(base: Path, raw: list[Path], out: Path, options: Options) -> dict[str, Any]:
    """Write a copy of the release ``base`` with the answers of ``raw`` rows. Return the counts.

    Raises :class:`InputError` for a wrong row, and if no row asks a query of the release.
    """
    from builders.release.answer_records import Record, answers_of, merged, record_of
    from builders.release.rows import find_sources, parse_rows
    from builders.sources.lines import read_blocks
    from builders.store.draft import describe_files, draft_release
    from builders.store.judgments import read_judged
    from builders.store.reader import open_release
    from builders.store.stored_answers import warn_of_gaps

    release, sources = open_release(base), find_sources(raw, SPLITS[0])  # a raw row may belong to any split
    texts = {split: release.texts("queries", split) for split in SPLITS if ("queries", split) in release.splits()}
    # Questions are matched by the MD5 of their text, because queries of a copy from a hub may have other ids.
    wanted = {text_id(text) for own in texts.values() for text in own.values()}
    records: dict[str, list[Record]] = {}
    with progress(unit="row", label="answers") as bar:
        for block in read_blocks(sources):
            for _, row in parse_rows(block):
                if (text := text_id(row.question)) in wanted:
                    records.setdefault(text, []).append(record_of(row, block.source.name))
                bar.update()
    if not records:
        raise InputError(
            f"no question of {', '.join(map(str, raw))} is a query of this release; expected raw rows of its queries",
            path=base,
        )
    files = describe_files((source.name.split("!")[0], source.path) for source in sources)
    build = {"verb": "answers", "options": options.rule_as_json(), "sources": files}
    matched = {}
    with draft_release(out, build, release) as draft:
        draft.drop("answers")
        for split, own in texts.items():
            found = [(query, merged(records[text_id(text)])) for query, text in own.items() if text_id(text) in records]
            if found:
                draft.write("answers", split, answers_of(release, found, read_judged(release, "qrels", split), options))
            matched[split] = {"queries": len(own), "matched": len(found)}
    warn_of_gaps(draft.stats["answers"])
    return {"matched": matched, "answers": draft.stats["answers"]}
