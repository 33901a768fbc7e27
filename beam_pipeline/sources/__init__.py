"""The source of documents: planning the input as work units, and reading a unit."""
