"""What a run leaves: its folder, checkpoints, log and pictures."""
