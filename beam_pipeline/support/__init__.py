"""Files, messages, errors and numbers for all other packages."""
