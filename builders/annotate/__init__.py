"""People judge the pairs of a pool: a round in packages (A.3).

    pool -> export -> label -> import -> review -> import -> check -> adjudicate -> merge

`export` writes a round: packages of 1,000 pairs, each as tasks for Label Studio (query and passage with the terms that
they share marked, keys 1 and 0), as a table and as JSON lines. `import` takes in what was judged, in the same forms.
`review` draws 100 random pairs of each finished package for each of two reviewers; `check` accepts packages from 93 %
on, sends the others back as a new version, and prints how far people agree (Cohen's and Fleiss' kappa); `adjudicate`
collects what they disagree on. `merge` makes new qrels of the accepted packages. `prefill` lets a model judge first,
marked as a model's; `compare` says how far it agrees with people.

`pool` chooses the pairs; `relabel` moves training negatives that models hold positive; `translations` puts English
queries under the same quality control. None of them needs a round.

Judgments are only ever added: each keeps who, when, which package, which version. Every step may be killed and given
again; the same import changes nothing; two at once lose nothing.

docs/annotate.md is the way through a round.

example:
  python -m builders annotate pool select --release build/sample --runs one.run two.run --scores ce.run \\
      --out build/pool/dev.jsonl.gz
  python -m builders annotate export --pool build/pool/dev.jsonl.gz --release build/sample --round build/round
  python -m builders annotate import --round build/round project-1.json
  python -m builders annotate review --round build/round --reviewers anna@example.com ben@example.com
  python -m builders annotate import --round build/round --annotator anna@example.com sheets/dev-001.csv
  python -m builders annotate check --round build/round
  python -m builders annotate adjudicate --round build/round
  python -m builders annotate merge --round build/round --release build/sample --out build/relabelled
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.core.command import add_steps

# A module with ``add_arguments(parser)`` and ``run(args)``; or MODULE:NAME, the function NAME of a module and, if it
# has options, ``NAME_arguments(parser)``. The docstring of the module or function is the step's help.
ROUND_STEPS = {
    "export": "builders.annotate.tasks:export",
    "import": "builders.annotate.tasks:take_in",
    "review": "builders.annotate.review:review",
    "check": "builders.annotate.review:check",
    "adjudicate": "builders.annotate.review:adjudicate",
    "merge": "builders.annotate.relabel:merge",
    "prefill": "builders.annotate.prefill",
    "compare": "builders.annotate.prefill:compare",
}
STEPS = {
    "pool": "builders.annotate.pool",
    **ROUND_STEPS,
    "relabel": "builders.annotate.relabel",
    "translations": "builders.annotate.review:translations",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steps(parser, STEPS, _add_round)


def _add_round(name: str, step: argparse.ArgumentParser) -> None:
    if name in ROUND_STEPS:
        step.add_argument("--round", type=Path, required=True, metavar="ROUND", help="the round's directory")


def run(args: argparse.Namespace) -> int | None:
    return args.run_step(args)  # type: ignore[no-any-return]
