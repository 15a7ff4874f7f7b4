"""The training loop, its optimizer, schedules and checkpoints."""
