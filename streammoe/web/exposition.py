"""Metrics for Prometheus over HTTP."""

from __future__ import annotations

from typing import Any

from prometheus_client.exposition import choose_encoder

from streammoe.web.listener import Handler


class Exposition(Handler):
    """The ``registry`` of what is served, in the format that is asked for."""

    requires_password = True

    def get(self) -> None:
        registry = self.of.registry
        if registry is None:
            self.say(503, "starting: the counters are not restored yet")
            return
        names = self.get_query_arguments("name[]")
        shown: Any = registry.restricted_registry(names) if names else registry
        encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", content_type)
        self.finish(encode(shown))
