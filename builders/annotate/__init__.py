"""Let people judge query-passage pairs in rounds (Appendix A.3).

    pool -> export -> label -> import -> review -> import -> check -> adjudicate -> merge

`pool` selects the pairs to judge.
`export` writes a round: packages of 1,000 pairs. Each package is written as tasks for Label Studio, as a CSV sheet and
as JSON lines. Label Studio highlights the terms that query and passage share. The keys 1 and 0 set the label.
`import` reads judgments from Label Studio's export, from sheets and from JSON lines.
`review` draws 100 random pairs of each fully judged package for each reviewer.
`check` accepts a package if reviewers find at least 93 % of its labels right. Otherwise, the annotators get a new
version of the package to revise. `check` also prints the agreement between people (Cohen's and Fleiss' kappa).
`adjudicate` collects the pairs on which people disagree.
`merge` writes a release with new qrels from the accepted packages.
`prefill` lets a model judge before people do. A model's judgments never count as a person's.
`compare` measures the agreement of a model with people.

`pool`, `relabel` and `translations` need no round. `relabel` makes a training negative a positive if models give the
negative a high score. `translations` applies the quality control of a round to English translations of queries.

Judgments are added, never changed. A judgment records person, time, package and version. A killed step can be run
again. Importing a file a second time changes nothing. Several imports can run at once. docs/annotate.md has details.

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

STEPS = {
    "pool": "builders.annotate.pool_steps:pool_passages",
    "export": "builders.annotate.round_steps:export_round",
    "import": "builders.annotate.round_steps:import_judgments",
    "review": "builders.annotate.round_steps:draw_reviews",
    "check": "builders.annotate.round_steps:check_round",
    "adjudicate": "builders.annotate.round_steps:collect_disagreements",
    "merge": "builders.annotate.round_steps:merge_round",
    "prefill": "builders.annotate.judge_steps:prefill_round",
    "compare": "builders.annotate.judge_steps:compare_with_people",
    "relabel": "builders.annotate.pool_steps:relabel_negatives",
    "translate": "builders.annotate.translation_steps:translate_queries",
    "translations": "builders.annotate.translation_steps:manage_translations",
}
