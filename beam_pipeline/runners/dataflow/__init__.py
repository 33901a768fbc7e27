"""Running on Dataflow: the options of a job, submitting it, and following it."""
