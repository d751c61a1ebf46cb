"""The model behind the estimators: learning, prediction, snapshots and checkpoints."""
