"""Families of experts, one file each: the state of a mixture of them, and how one begins."""
