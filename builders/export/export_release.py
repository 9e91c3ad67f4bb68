"""The verb `export`: write a release for other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from builders.core.options import Again, AtLeastOne, Needs, OneOf, Placeholder
from builders.core.results import Report, Table
from builders.core.verbs import verb
from builders.export.export_options import EXPORT_FORMATS, ExportedSet
from builders.store.release_options import ReleasePath, RunPath

# Raise this number if the same call writes other files than before.
RESULT_VERSION = 2


@verb()
def export_release(
    release: ReleasePath,
    *,
    format: Annotated[str, OneOf(EXPORT_FORMATS)],
    out: Annotated[Path, Placeholder("DIR")],
    set: ExportedSet = "main",
    negatives: Annotated[Sequence[Path], Placeholder("F")] = (),
    negatives_per_positive: Annotated[AtLeastOne, Placeholder("N")] = 4,
    run: Sequence[RunPath] = (),
    runs_only: Annotated[bool, Needs("run")] = False,
    top_k: Annotated[AtLeastOne, Placeholder("K"), Needs("format=rag")] = 10,
    again: Again = False,
) -> Report:
    """Write a release for other tools: BEIR, FlagEmbedding, PyLate.

    The formats are:

      beir      corpus.jsonl, queries.jsonl (every split), qrels/SPLIT.tsv with a header
      trec      corpus/docs-NN.jsonl ({"id", "contents"}: Pyserini's JsonCollection), topics.SPLIT.tsv,
                qrels.SPLIT.txt, and the runs of the release (runs/NAME.trec)
      msmarco   collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv (query, 0, passage, score: also for trec_eval)
      tevatron  SPLIT.jsonl (query_id, query, positive_passages, negative_passages), corpus.jsonl (docid, title, text)
      flagembedding          SPLIT.jsonl: query, pos (all positives), neg (all negatives)
      triplets               SPLIT.jsonl: query, positive, negative; one line for each negative
      pylate                 SPLIT.jsonl: query, positive, negative_1, negative_2 ...; one line for each positive
      sentence-transformers  the files of pylate, and SPLIT.pairs.jsonl: query, passage, label, for a CrossEncoder
      rag       only runs (--run): rag/NAME.jsonl with a line for each query: question, answers and types of the
                config answers, and the --top-k best passages with rank, score and text, for generation
      official  the files of the original release (main set only): passage_collection.json, train.json, dev.json,
                test1.json, and the baseline's dual.train.tsv and cross.train.tsv if train has negatives

    --negatives F ... adds hard negatives from files of `python -m baselines mine` to tevatron, flagembedding, triplets,
    pylate and sentence-transformers. Mined negatives come before the release's own negatives. In triplets, pylate and
    sentence-transformers, the first positive of a query gets the first --negatives-per-positive negatives, the second
    positive gets the next ones, and so on. If a query has too few negatives, pylate and sentence-transformers repeat
    negatives. tevatron keeps all queries. The other four formats skip queries without a positive or a negative, and
    log their number.

    --run RUN ... also writes runs, in the formats trec (runs/NAME.trec), beir (runs/NAME.json, BEIR's results) and
    official (predictions/NAME.json, at most 50 passages per query). The scores of a query are distinct, even as 32-bit
    floats, so that every tool sorts the passages alike. A submission consists of official predictions for the test
    split. Official predictions may lack queries, which are logged, but must have no unknown passage and no query of
    another split. The formats trec and beir have all queries of the run.

    JSON formats contain the unchanged texts. TSV formats replace each tab or line end by a space. The number of changed
    lines is logged and written to the file EXPORT. For splits without judgments, only queries are written. The output
    directory appears when it is complete. An earlier export is replaced. Any other directory with files is an error.

    --set also accepts the drawn training sets that `add` makes: restrain-SIZE-interpolation,
    restrain-SIZE-extrapolation and resttest-bucketN. The export is then the main set with only the training questions
    of the drawn set. The test splits of resttest-bucketN are interpolation and extrapolation.

    Args:
        release: release directory to export
        format: format to write
        out: directory to write
        negatives: hard negatives from `baselines mine`
        negatives_per_positive: number of negatives for each positive
        run: runs to write beside the set
        runs_only: write only the runs
        top_k: passages of each query in the format rag

    Returns:
        The number of rows of each written file.

    Raises:
        InputError: the release lacks the set, an id or text does not fit the format, the format has no negatives or
            runs, or ``out`` exists and is not an earlier export.

    Examples:
        python -m builders export --release build/sample --format beir --out build/beir
        python -m builders export --release build/release --set cmedqa --format trec --out build/cmedqa-trec
        python -m builders export --release build/sample --format flagembedding --negatives build/negatives.jsonl.gz \\
          --out build/flagembedding
        python -m builders export --release build/sample --format official --runs-only \\
          --run build/runs/bm25.test.run.gz --out build/predictions
        python -m builders export --release build/sample --format rag --run build/runs/bm25.dev.run.gz --out build/rag
        python -m builders export --release DIR --set restrain-14K-extrapolation --format msmarco --out build/restrain
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from builders.core.finished_outputs import (
        VerbCall,
        file_input,
        find_finished,
        is_kept,
        option_values,
        record_finished,
    )
    from builders.export.export_formats import export_set
    from builders.store.layout import MANIFEST
    from builders.store.reader import open_release
    from builders.store.runs import Run
    from builders.store.verb_inputs import runs_input

    release = open_release(release)
    # If an earlier call with the same input and options has written the files, only their numbers of rows are read.
    call = None
    if is_kept(out):
        # The manifest has the checksums of all files of the release.
        inputs = {"release": file_input(f"the release {release.path}", release.path / MANIFEST)}
        for number, path in enumerate(negatives, 1):
            inputs[f"negatives {number}"] = file_input(f"the negatives {path}", path)
        inputs["run"] = runs_input("the runs", run)
        options = option_values(arguments, inputs, ("negatives",))
        # An exported run has the name of its file, so equal runs with other names are another export.
        run_paths = [one_run.path if isinstance(one_run, Run) else one_run for one_run in run]
        options["run_names"] = [run_path.name for run_path in run_paths]
        call = VerbCall("export", RESULT_VERSION, options, inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        rows_by_file = finished.result
    else:
        rows_by_file = export_set(
            release,
            format,
            out,
            set,
            negatives=negatives,
            negatives_per_positive=negatives_per_positive,
            runs=run,
            runs_only=runs_only,
            top_k=top_k,
        )
        record_finished(out, call, result=rows_by_file)
    lines = [f"{name}: {row_count:,} rows" for name, row_count in rows_by_file.items()]
    lines.append(f"export: {out}")
    return Report(
        value={"out": str(out), "format": format, "set": set, "rows": rows_by_file},
        text="\n".join(lines),
        tables=[Table(("file", "rows"), list(rows_by_file.items()))],
    )
