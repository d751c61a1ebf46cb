"""Connectors: one source or sink a module, found by `streammoe` through the entry-point group ``streammoe.connectors``.

A connector knows records and positions (`streammoe.ports`) and nothing of events, features or models.
"""
