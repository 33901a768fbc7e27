"""What the verbs that show a dataset have in common: reading it, tracing a row to its documents, drawing."""
