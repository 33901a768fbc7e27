"""Where pipelines run: in this process, behind a job service, on Dataflow."""
