"""How schemathesis writes JSON Lines, of which it knows nothing."""

import msgspec
import schemathesis


@schemathesis.serializer("application/jsonl", "application/x-ndjson")
def lines(_, value):
    try:
        return msgspec.json.Encoder().encode_lines(value)
    except TypeError:  # what is to be refused
        return str(value).encode()
