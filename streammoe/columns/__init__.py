"""Columns: what the fields of events hold, and an event as a row of numbers and of features."""
