"""Files, messages, errors and numbers: what all other packages use."""
