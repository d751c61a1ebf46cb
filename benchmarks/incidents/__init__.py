"""How soon does the fitting alert fire in real incidents, which others fire, and when does it resolve?

Real brokers on this machine, a `streammoe run` for each incident, which a supervisor restarts, a producer for each, and
one Prometheus with config/prometheus. Each incident waits until its daemon is well, lasts for five minutes unless it is
over by itself, and is repaired. One more daemon, to which nothing happens, must set off nothing. Seconds until the
resolution are counted from the repair; where there is none, from the cause.
"""
