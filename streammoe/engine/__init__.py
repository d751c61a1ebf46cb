"""The learning engine: states, steps and starts. Arrays in, arrays out; no I/O."""
