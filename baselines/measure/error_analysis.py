"""Explain figures: failures, holes, duplicates, stages, no answer.

`draw` draws the errors of a run as the paper does, for people who sort the errors into categories (Section 3.5).
`tally` prints the share of each category in people's answers next to Table 10.
`holes` measures the effect of retrieved passages that nobody judged.
`duplicates` measures runs with near-duplicate passages counted as one passage.
`stages` divides the failed queries of a two-stage search by the stage that failed.
`no-answer` measures whether scores tell when no passage answers a question.

`evaluate` measures runs. docs/errors.md and docs/holes.md have details.

example:
  python -m baselines errors draw --release build/sample --split dev --round build/errors build/runs/bm25.dev.run.gz
  python -m builders annotate import --round build/errors --annotator anna@example.com dev-001.csv
  python -m baselines errors tally build/errors
  python -m baselines errors holes --release build/sample --split dev build/runs/bm25.dev.run.gz
  python -m baselines errors duplicates --release build/sample --split dev build/runs/bm25.dev.run.gz
  python -m baselines errors stages --release build/sample build/runs/bm25.dev.run.gz build/runs/ce.dev.run.gz
  python -m baselines errors no-answer --release build/sample build/runs/bm25.dev.run.gz
"""

STEPS = {
    "draw": "baselines.measure.error_steps:draw_errors",
    "tally": "baselines.measure.error_steps:tally_errors",
    "holes": "baselines.measure.error_steps:report_holes",
    "duplicates": "baselines.measure.error_steps:report_duplicates",
    "stages": "baselines.measure.error_steps:report_stages",
    "no-answer": "baselines.measure.no_answer_step:report_no_answer",
}
