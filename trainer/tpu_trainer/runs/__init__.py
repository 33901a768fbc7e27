"""Run artifacts: the folder, checkpoints, log and charts of a run."""
