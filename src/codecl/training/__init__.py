"""Training a network on one task after another: the loop, its schedules, its checkpoints and its metrics."""
