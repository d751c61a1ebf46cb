"""The phases of a model: a warm-up, then one mixture or a race of several."""
