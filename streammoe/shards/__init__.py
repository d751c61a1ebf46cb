"""Shards: daemons that learn parts of one stream, and the global model that is made of their checkpoints."""
