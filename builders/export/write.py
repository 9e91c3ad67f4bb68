"""The directory of an export: the files of one set in one format, and EXPORT, which says what they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from builders.core.errors import InputError
from builders.core.files import sha256_of, write_text
from builders.core.folders import new_directory
from builders.export.drawn import set_to_export
from builders.export.formats import FORMATS, RUN_FORMS, WITH_NEGATIVES
from builders.export.output import Options, Output
from builders.export.runs import write_runs
from builders.store.layout import MANIFEST
from builders.store.reader import Release

_NOTHING = Options()
MARKER = "EXPORT"  # no .json: tools that read every JSON file of a folder should not read this one


def export(
    release: Release, form: str, out: Path, name: str = "main", options: Options = _NOTHING
) -> dict[str, int | None]:
    """Write the set ``name`` of a release in one format; returns the rows of every file (None: not counted).

    Args:
        release: an opened release.
        form: a key of :data:`builders.export.formats.FORMATS`.
        out: the directory to write; an earlier export there is replaced.
        name: a set, as :func:`builders.export.drawn.set_name` takes it.
        options: negatives and runs that go with it.

    Raises:
        InputError: the release has no such set, a text or an id of it does not fit the format, which takes no negatives
            or no runs, or ``out`` is something else than an earlier export.
    """
    for given, option, forms in (
        (options.negatives, "--negatives", WITH_NEGATIVES),
        (options.runs, "--run", tuple(RUN_FORMS)),
    ):
        if given and form not in forms:
            raise InputError(f"{option} goes with --format {', '.join(forms)}, not {form}")
    if options.runs_only and not options.runs:
        raise InputError("--runs-only goes with --run")
    _check_apart(Path(os.path.realpath(out)), Path(os.path.realpath(release.path)))
    with new_directory(out, "an export", MARKER) as folder:
        output = Output(folder, release.path, options)
        data = set_to_export(release, name)
        if options.runs_only:
            write_runs(output, options.runs, RUN_FORMS[form], data)
        else:
            FORMATS[form](data, output)
        about = {"format": form, "set": name, "release": sha256_of(release.path / MANIFEST)}
        marker = {**about, **output.notes, "files": output.rows}
        write_text(folder / MARKER, json.dumps(marker, ensure_ascii=False, indent=1) + "\n")
    return output.rows


def _check_apart(out: Path, release: Path) -> None:
    if out == release or release in out.parents or out in release.parents:
        raise InputError(f"overlaps the release {release}; expected a directory of its own", path=out)
