"""What a program shows on a terminal, for the pipeline and the trainer: neither imports the other."""
