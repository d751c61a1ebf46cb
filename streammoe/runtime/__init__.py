"""The daemon: from a source's bytes to a learned model, its metrics and its checkpoints."""
