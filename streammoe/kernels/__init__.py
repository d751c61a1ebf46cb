"""Compiled hot loops: arrays in, arrays out."""
