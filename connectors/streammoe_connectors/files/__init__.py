"""Files as a source: finite or followed, plain or compressed, text or Parquet."""
