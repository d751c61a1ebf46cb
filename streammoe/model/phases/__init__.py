"""The phases of a model: a warm-up, then a mixture that learns by steps."""
