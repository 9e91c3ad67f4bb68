"""Offline programs: public sources in, a release directory out (``python -m builders VERB``)."""
