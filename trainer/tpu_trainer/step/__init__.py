"""The training step: the task, its optimizer, schedule and guards."""
