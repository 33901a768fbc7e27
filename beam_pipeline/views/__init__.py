"""The shared code of the verbs that show a dataset: reading it, decoding rows, tracing a row to its documents."""
