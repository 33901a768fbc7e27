"""Training data: datasets, mixtures, the order of rows, and batches."""
