"""Add a set to a copy of a release.

example:
  python -m builders add cmedqa --source cMedQA2 --release build/sample --out build/all
"""

# Each step of the verb `add`, with its function.
STEPS = {
    "cmedqa": "builders.add.add_cmedqa:add_cmedqa",
    "ccovid": "builders.add.add_ccovid:add_ccovid",
    "crosslingual": "builders.add.add_crosslingual:add_crosslingual",
    "stress": "builders.add.add_stress:add_stress",
    "restrain": "builders.add.add_restrain:add_restrain",
    "resttest": "builders.add.add_resttest:add_resttest",
    "answers": "builders.add.add_answers:add_answers",
    "samples": "builders.add.add_samples:add_samples",
}
