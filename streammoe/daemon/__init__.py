"""The daemon: the learning loop, its checkpoints, guards, metrics and endpoint."""
