"""Compares finished and running runs: their losses, scores, options, data and speed, on one page."""
