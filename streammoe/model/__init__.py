"""A model made of parts: what learns, predicts, is saved and restored behind the estimators."""
