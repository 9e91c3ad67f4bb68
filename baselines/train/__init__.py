"""Recipes, training and mining (``python -m baselines train``, ``mine``)."""
