"""A Label Studio project for each package, review and adjudication of a round.

What the server has already is left as it is, so the same command after a kill, or after `review`, `check` and
`adjudicate`, adds what is new; two at once take turns. Killed while the server takes tasks in, wait until it has them.
Address and token: LABEL_STUDIO_URL, LABEL_STUDIO_API_KEY.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.common.command import InputError, log

_LONGEST = 50  # characters of a title: Label Studio's bound


def add_arguments(_: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    from builders.annotate.rounds import STUDIO, open_round
    from builders.common.locks import alone

    open_round(args.round)
    with alone(args.round / STUDIO, args.round, wait=True):  # two at once would both make what is not there
        _upload(args.round)


def _upload(round_: Path) -> None:
    from builders.annotate.rounds import STUDIO, open_round
    from builders.annotate.server import mark_of, open_server, projects_of
    from builders.annotate.studio import CONFIG_FILE, tasks_in
    from builders.common.files import read_utf8, read_whole

    found = open_round(round_)
    config = read_utf8(round_ / STUDIO / CONFIG_FILE)
    files = [
        *sorted((round_ / STUDIO).glob("*.json")),
        *sorted((round_ / "reviews").glob("*/*.json")),
        *sorted((round_ / "adjudication").glob("*.json")),
    ]
    server, made = open_server(), 0
    known = {project.description: project for project in projects_of(server, found)}
    for file in files:
        name = file.relative_to(round_).with_suffix("").as_posix()
        title, description = name.removeprefix(f"{STUDIO}/")[:_LONGEST], f"{mark_of(found)}{name}"
        content = read_whole(file)
        tasks, there = tasks_in(content, file), known.get(description)
        if there and there.task_number == tasks:
            continue
        if there and there.task_number:
            what = f"project {there.id} ({title}) has {there.task_number} tasks, expected {tasks}: remove it there"
            raise InputError(what, path=server.url)
        project = there.id if there else server.make_project(title, description, config)
        if (taken := server.add_tasks(project, content)) != tasks:
            raise InputError(f"took {taken} of {tasks} tasks of {name}", path=server.url)
        made += 1
        log.info("%s: %d tasks, project %d", name, tasks, project)
        print(f"{server.url}/projects/{project}/  {name}: {tasks:,} tasks")
    print(f"{made:,} projects made, {len(files) - made:,} there already")
