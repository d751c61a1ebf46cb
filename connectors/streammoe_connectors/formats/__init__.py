"""How records are told apart in bytes, and binary formats turned into JSON text."""
