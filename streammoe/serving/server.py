"""The listener for predictions on request; see docs/serving.md."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from streammoe.catalogue import LiveMetrics, Metric
from streammoe.errors import StreammoeError
from streammoe.rows import Row
from streammoe.serving import inference
from streammoe.serving.answers import LINES, RequestError, answers, records_in
from streammoe.serving.snapshot import Published, Snapshot
from streammoe.settings import ServeSettings
from streammoe.text import shown
from streammoe.web.listener import Handler, Limits, Listener

SECONDS = 30.0
"""For a request, and between two of them on one connection."""
CONNECTIONS = 256
MOST_POSITIONS = 2_000
"""Characters of positions in a header; longer ones are only in the metadata of the model."""
OF_SERVING: dict[str, Metric] = {
    "streammoe_http_requests_total": Metric(
        Counter, "Requests for predictions, by route and status", ("route", "code")
    ),
    "streammoe_http_request_seconds": Metric(
        Histogram,
        "Seconds from the head of such a request to the end of its answer",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0),
    ),
    "streammoe_snapshot_age_seconds": Metric(Gauge, "Age of the copy of the model that predicts on request"),
}
"""What a daemon with ``serve.enabled`` has besides its own."""
_encode = msgspec.json.Encoder().encode


class PredictionServer:
    """HTTP server for predictions, from construction to `close`; nothing that it is asked changes anything.

    Args:
        settings: the section ``[serve]``.
        published: the snapshots that predict.
        problem: returns why it is not ready; empty if it is.
        interval: probability of predictive intervals, unless a request names another; 0 leaves them out.
        metrics: to which those of requests are added.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    paths = ("/predict", "/v2", "/healthz", "/readyz")

    def __init__(
        self,
        settings: ServeSettings,
        published: Published,
        problem: Callable[[], str],
        interval: float,
        metrics: LiveMetrics,
    ) -> None:
        self.settings, self.published, self.problem, self.interval = settings, published, problem, interval
        self.metrics = metrics
        metrics.add(OF_SERVING)
        metrics.gauge("streammoe_snapshot_age_seconds").set_function(self._age)
        self._waiting: dict[float, list[tuple[list[bytes], asyncio.Future[Any]]]] = {}
        self._room, self._counted_at = float(settings.rows_per_second), time.monotonic()
        model = f"/v2/models/{settings.name}(?:/versions/(?P<version>[^/]+))?"
        routes: list[tuple[str, type[Handler]]] = [
            ("/predict", _Predict),
            ("/v2", _Server),
            ("/healthz|/v2/health/live", _Alive),
            ("/readyz|/v2/health/ready", _Ready),
            (model, _Model),
            (f"{model}/ready", _ModelReady),
            (f"{model}/infer", _Infer),
        ]
        limits = Limits(SECONDS, CONNECTIONS, settings.max_body_bytes, keeps_alive=True)
        self.listener = Listener(settings, routes, limits, self)
        self.url = self.listener.url

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self.listener.close()

    def _age(self) -> float:
        found = self.published.latest
        return math.nan if found is None else time.monotonic() - found.taken_at

    def snapshot(self) -> Snapshot:
        """Return the latest snapshot; raise `RequestError` if nothing was learned yet."""
        found = self.published.latest
        if found is None or not found.version:
            raise RequestError(503, f"not ready: {self.problem() or 'nothing was learned yet'}")
        return found

    async def predict(self, records: list[bytes], interval: float) -> tuple[Snapshot, list[Row]]:
        """Predict records, together with those of other requests that have come meanwhile.

        Raises:
            RequestError: nothing was learned yet, there are too many of them, or one cannot be read.
        """
        if not records:
            raise RequestError(422, "the request has no rows")
        if len(records) > self.settings.max_rows:
            raise RequestError(
                413, f"the request has {len(records)} rows; serve.max_rows allows {self.settings.max_rows}"
            )
        self._admit(len(records))
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[tuple[Snapshot, list[Row]]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._answer)
        self._waiting.setdefault(interval, []).append((records, answered))
        return await answered

    def _admit(self, rows: int) -> None:
        """Count rows against those that may be answered in a second."""
        rate, now = self.settings.rows_per_second, time.monotonic()
        self._room = min(rate, self._room + rate * (now - self._counted_at))
        self._counted_at = now
        if self._room <= 0.0:
            raise RequestError(429, f"more rows are asked for than serve.rows_per_second = {rate} allows")
        self._room -= rows

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for interval, asked in waiting.items():
            futures = [future for _, future in asked]
            try:
                snapshot = self.snapshot()
                found: Sequence[Any] = answers(snapshot, [records for records, _ in asked], interval)
            except Exception as error:  # noqa: BLE001 - each handler raises it
                for future in futures:
                    future.set_exception(error)
                continue
            for future, answer in zip(futures, found, strict=True):
                if isinstance(answer, RequestError):
                    future.set_exception(answer)
                else:
                    future.set_result((snapshot, answer))


class JsonHandler(Handler):
    """A handler that answers in JSON, and errors likewise."""

    content_type = "application/json"
    requires_password = True
    route = ""
    """For metrics."""

    def on_finish(self) -> None:
        metrics = self.of.metrics
        metrics.counter("streammoe_http_requests_total", self.route, str(self.get_status())).inc()
        metrics.histogram("streammoe_http_request_seconds").observe(self.request.request_time())

    def answer(self, content: object, status: int = 200) -> None:
        self.set_status(status)
        self.finish(_encode(content))

    def say(self, status: int, text: str) -> None:
        self.answer({"error": text}, status)

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None, None))[1]
        if isinstance(error, RequestError):
            if error.status in {429, 503}:
                self.set_header("Retry-After", "1")
            self.answer({"error": str(error), **error.more}, error.status)
        else:
            super().write_error(status_code, **more)

    def log_exception(self, type_: Any, value: Any, traceback: Any) -> None:
        if not isinstance(value, StreammoeError):
            super().log_exception(type_, value, traceback)

    def identify(self, snapshot: Snapshot) -> None:
        """Say in headers which model answers."""
        self.set_header("Streammoe-Version", str(snapshot.version))
        if snapshot.digest is not None:
            self.set_header("Streammoe-Digest", snapshot.digest)
        positions = msgspec.json.encode(snapshot.positions).decode("ascii", "replace")
        if len(positions) <= MOST_POSITIONS:
            self.set_header("Streammoe-Positions", positions)

    def option(self, name: str, default: float) -> float:
        """Return a probability in the query; raise `RequestError` if it is none."""
        text = self.get_query_argument(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < 1.0:
            raise RequestError(400, f"{name}: got {shown(text)}; it must be from 0 to below 1")
        return value


class _Predict(JsonHandler):
    route = "/predict"
    SUPPORTED_METHODS = ("POST",)

    async def post(self) -> None:
        content_type = self.request.headers.get("Content-Type", "")
        interval = self.option("interval", self.of.interval)
        records, shape = records_in(self.request.body, content_type)
        snapshot, rows = await self.of.predict(records, interval)
        self.identify(snapshot)
        if self.get_query_argument("gate", "true") == "false":
            for row in rows:
                row.gate = msgspec.UNSET
        if shape == "lines":
            self.set_header("Content-Type", LINES[0])
            self.finish(msgspec.json.Encoder().encode_lines(rows))
        else:
            self.answer(rows[0] if shape == "object" else rows)


class _Infer(JsonHandler):
    route = "/v2/infer"
    SUPPORTED_METHODS = ("POST",)

    async def post(self, version: str | None = None) -> None:
        of = self.of
        _check_version(of.snapshot(), version)
        try:
            request = msgspec.json.decode(self.request.body, type=inference.InferenceRequest)
        except msgspec.DecodeError as error:
            raise RequestError(400, f"the body is not a request for inference: {error}") from None
        snapshot, rows = await of.predict(inference.records_of(request), of.interval)
        self.answer(inference.response(snapshot, of.settings.name, request, rows))


class _Server(JsonHandler):
    route = "/v2"

    def get(self) -> None:
        self.answer({"name": "streammoe", "version": "0.1.0", "extensions": ["predict"]})


class _Model(JsonHandler):
    route = "/v2/models"

    def get(self, version: str | None = None) -> None:
        snapshot = self.of.published.latest
        if version is not None:
            _check_version(self.of.snapshot(), version)
        self.answer(inference.metadata(snapshot, self.of.settings.name))


class _ModelReady(JsonHandler):
    route = "/v2/models/ready"
    requires_password = False

    def get(self, version: str | None = None) -> None:
        _check_version(self.of.snapshot(), version)
        self.answer({"name": self.of.settings.name, "ready": True})


class _Alive(JsonHandler):
    route = "/healthz"
    requires_password = False

    def get(self) -> None:
        self.answer({"live": True})


class _Ready(JsonHandler):
    route = "/readyz"
    requires_password = False

    def get(self) -> None:
        self.of.snapshot()
        if problem := self.of.problem():
            raise RequestError(503, problem)
        self.answer({"ready": True})


def _check_version(snapshot: Snapshot, version: str | None) -> None:
    if version is not None and version != str(snapshot.version):
        raise RequestError(404, f"there is no version {shown(version)}, only {snapshot.version}: the model learns on")
