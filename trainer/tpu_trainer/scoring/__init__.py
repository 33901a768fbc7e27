"""Scores of a model on tasks: what it finds likely."""
