"""Output on a terminal, shared by the pipeline and the trainer, neither of which imports the other."""
