"""Files, messages, errors and figures of chips: what all other packages use."""
