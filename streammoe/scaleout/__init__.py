"""Many processes and machines: batch fits on Dask, daemons that share a stream, and the global model of all of them.

Nothing else imports this package; commands, and the daemon's observer, are found by entry points.
"""
