"""Batch fits of files, without a program: `streammoe fit`."""
