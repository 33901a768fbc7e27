"""Where documents come from: planning the input as work units, and reading a unit."""
