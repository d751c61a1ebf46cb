"""Broken records by the million, fed to the readers, decoders and models of the daemon: ``python -m tests.fuzz``."""
