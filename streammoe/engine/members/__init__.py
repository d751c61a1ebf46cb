"""Members of a portfolio: models of one stream that predict together, see `streammoe.engine.portfolio`."""
