"""The learning engine: states, steps and batch fits. Arrays in, arrays out; no I/O."""
