"""The way of an event: from the bytes of a batch to scores, predictions and dead letters."""
