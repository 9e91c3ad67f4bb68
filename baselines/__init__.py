"""A release directory in, runs, measures and tables out (``python -m baselines VERB``)."""
