"""The version of this project, which stands only here.

pyproject.toml reads it. After a change, run `python -m builders.store.loader_tables`, which copies the version to
dureader_retrieval.py and CITATION.cff.
"""

VERSION = "1.0.0"
