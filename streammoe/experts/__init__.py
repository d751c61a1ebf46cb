"""Families of experts: one file each, behind the contract of `streammoe.experts.family`."""
