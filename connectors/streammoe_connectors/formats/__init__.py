"""Division of bytes into records, and conversion of binary formats to JSON text."""
