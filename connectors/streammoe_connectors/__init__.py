"""Sources and sinks, which `streammoe` finds through the entry-point group ``streammoe.connectors``.

A connector knows records and positions (`streammoe.ports`) but nothing about events, features or models.
"""
