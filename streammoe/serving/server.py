"""The listener for predictions on request; see docs/serving.md."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from tornado.web import RequestHandler

from streammoe.catalogue import LiveMetrics, Metric
from streammoe.rows import Row
from streammoe.serving import docs, inference, openapi, page
from streammoe.serving.answers import (
    LINES,
    Failure,
    RequestError,
    answers,
    explanations,
    ignored,
    predicted_rows,
    records_in,
)
from streammoe.serving.figures import History, experts_of
from streammoe.serving.openapi import JSON, Route
from streammoe.serving.snapshot import Published, Snapshot
from streammoe.settings import ServeSettings
from streammoe.text import shown
from streammoe.web.exposition import Exposition
from streammoe.web.listener import Handler, Limits, Listener

LIMITS = Limits(seconds=30.0, connections=256, keeps_alive=True)
"""The seconds also count between two requests on one connection; the settings say how large bodies may be."""
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
"""Of the process that answers requests."""
MOST_EXPLAINED, EXPLANATION_ROWS = 100, 50
"""Rows that a request may have explained, each of which takes as long as so many predictions."""
DESCRIBING_SHARE = 0.05
"""Share of the time that goes into that."""
SILENT_SECONDS = 15.0
"""Seconds without a status from which on it is not ready."""
HIGHEST = 0.999_999
"""Probability of an interval up to which its ends are accurate."""
_encode = msgspec.json.Encoder().encode


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """What the query of a request for rows may have."""

    interval: Annotated[float, msgspec.Meta(ge=0.0, le=HIGHEST)] | msgspec.UnsetType = msgspec.UNSET
    """Probability of the intervals; by default that of the settings."""
    gate: bool = True


class Budget:
    """How much may be taken in a second, on average."""

    def __init__(self, rate: float) -> None:
        self._rate, self._room, self._at = rate, rate, time.monotonic()

    def take(self, amount: float) -> bool:
        """Take so much, unless too much was taken lately."""
        now = time.monotonic()
        self._room = min(self._rate, self._room + self._rate * (now - self._at))
        self._at = now
        if self._room <= 0.0:
            return False
        self._room -= amount
        return True


class PredictionServer:
    """HTTP server for predictions, from construction to `close`; nothing that it is asked changes anything.

    Args:
        settings: the section ``[serve]``.
        published: the snapshots that predict.
        interval: probability of predictive intervals, unless a request names another; 0 leaves them out.
        metrics: to which those of requests are added.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    def __init__(
        self,
        settings: ServeSettings,
        published: Published,
        interval: float,
        metrics: LiveMetrics,
    ) -> None:
        self.settings, self.published, self.interval, self.metrics = settings, published, interval, metrics
        self._status: dict[str, Any] = {"problem": "starting"}
        self._shown_at, self._history = time.monotonic(), History()
        self._experts, self._describe_at = list[dict[str, Any]](), -math.inf
        self._described: Snapshot | None = None
        metrics.add(OF_SERVING)
        metrics.gauge("streammoe_snapshot_age_seconds").set_function(self._age)
        self._waiting: dict[float, list[tuple[list[bytes], asyncio.Future[Any]]]] = {}
        # Of each their own, so that explanations, which take longer, leave predictions theirs.
        self.predicted = Budget(settings.rows_per_second)
        self.explained = Budget(settings.rows_per_second / EXPLANATION_ROWS)
        self.routes = _routes(f"/v2/models/{settings.name}")
        limits = LIMITS._replace(body_bytes=settings.max_body_bytes)
        paths: list[tuple[str, type[Handler]]] = [(route.pattern, route.handler) for route in self.routes]
        self.listener = Listener(
            settings, [*paths, *page.ROUTES, ("/metrics", Exposition), (".*", _NotFound)], limits, self
        )
        self.url = self.listener.url

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self.listener.close()

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of requests, and of this process."""
        return self.metrics.registry

    def show(self, status: dict[str, Any]) -> None:
        """Take what there is to show; its ``problem`` says why it is not ready, and is empty if it is."""
        self._history.add(status)
        self._status, self._shown_at = status, time.monotonic()

    @property
    def problem(self) -> str:
        """Why it is not ready; empty if it is."""
        silent = time.monotonic() - self._shown_at
        return f"nothing was heard for {silent:.0f} s" if silent > SILENT_SECONDS else str(self._status["problem"])

    def status(self) -> dict[str, Any]:
        """Return what was shown last, and how it went since the start."""
        rate = self._history.events_per_second
        now = {**self._status, "problem": self.problem, "events_per_second": rate, "history": self._history.points}
        return {**now, "experts": self._experts} if self._experts else now

    def describe(self) -> None:
        """Find what experts of the latest snapshot are in words, which takes a while for a wide model."""
        snapshot, started = self.published.latest, time.monotonic()
        if snapshot is not None and snapshot is not self._described and started >= self._describe_at:
            model = snapshot.model
            self._experts, self._described = experts_of(model, model.coefficients()), snapshot
            self._describe_at = time.monotonic() + (time.monotonic() - started) / DESCRIBING_SHARE

    def _age(self) -> float:
        found = self.published.latest
        return math.nan if found is None else time.monotonic() - found.taken_at

    def document(self) -> dict[str, Any]:
        """Return the description of all that is served, as OpenAPI."""
        return openapi.document(self.routes, self.settings, self.published.latest)

    def snapshot(self) -> Snapshot:
        """Return the latest snapshot; raise `RequestError` if nothing was learned yet."""
        found = self.published.latest
        if found is None or not found.version:
            raise RequestError(503, f"not ready: {self.problem or 'nothing was learned yet'}")
        return found

    async def predict(self, records: list[bytes], interval: float) -> tuple[Snapshot, list[Row]]:
        """Predict records, together with those of other requests that have come meanwhile.

        Raises:
            RequestError: nothing was learned yet, there are too many of them, or one cannot be read.
        """
        self.admit(records, self.settings.max_rows, self.predicted)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[tuple[Snapshot, list[Row]]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._answer)
        self._waiting.setdefault(interval, []).append((records, answered))
        return await answered

    def admit(self, records: Sequence[bytes], most: int, budget: Budget) -> None:
        """Count rows against those that may be answered in a second.

        Raises:
            RequestError: there are none, more than may be in a request, or too many have been asked for.
        """
        if not records:
            raise RequestError(422, "the request has no rows")
        if len(records) > most:
            raise RequestError(413, f"the request has {len(records)} rows, and {most} are allowed (serve.max_rows)")
        if not budget.take(len(records)):
            rate = self.settings.rows_per_second
            raise RequestError(429, f"more rows are asked for than serve.rows_per_second = {rate} allows")

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for interval, asked in waiting.items():
            futures = [future for _, future in asked]
            try:
                snapshot = self.snapshot()
                predict = partial(predicted_rows, interval=interval)
                found: Sequence[Any] = answers(snapshot, [records for records, _ in asked], predict)
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
        self.answer(Failure(text), status)

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None, None))[1]
        if isinstance(error, RequestError):
            if error.status in {429, 503}:
                self.set_header("Retry-After", "1")
            self.answer(Failure(str(error), error.problems), error.status)
        else:
            super().write_error(status_code, **more)

    def log_exception(self, type_: Any, value: Any, traceback: Any) -> None:
        if not isinstance(value, RequestError):
            super().log_exception(type_, value, traceback)

    def identify(self, snapshot: Snapshot, record: bytes) -> None:
        """Say in headers which model answers, and what it ignores in a record."""
        self.set_header("Streammoe-Version", str(snapshot.version))
        if snapshot.digest is not None:
            self.set_header("Streammoe-Digest", snapshot.digest)
        if len(snapshot.positions_in_ascii) <= MOST_POSITIONS:
            self.set_header("Streammoe-Positions", snapshot.positions_in_ascii)
        if names := ignored(snapshot, record):
            self.set_header("Streammoe-Ignored", json.dumps(names))


class _Posted(JsonHandler):
    """A handler of bodies, which are JSON as it is."""

    SUPPORTED_METHODS = ("POST",)

    def prepare(self) -> None:
        super().prepare()
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            self.refuse(415, "the body is compressed; send it as it is, without Content-Encoding")
        elif "Inference-Header-Content-Length" in self.request.headers:
            self.refuse(415, "binary tensors are not read; send them as JSON, in most clients by binary_data=False")


class _Predict(_Posted):
    """Predict one row, a list of rows, or rows in JSON Lines.

    The answer has the same shape. Its headers say which model has predicted: Streammoe-Version, the number of events
    that it has learned, Streammoe-Digest of its latest checkpoint and Streammoe-Positions, where it reads on;
    Streammoe-Ignored names columns of the first row that it does not know, misspelt ones perhaps. A row that the stream
    would reject rejects the whole request.
    """

    route = "/predict"

    async def post(self) -> None:
        content_type = self.request.headers.get("Content-Type", "")
        query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        try:
            options = msgspec.convert(query, Options, strict=False)
        except msgspec.ValidationError as error:
            raise RequestError(400, f"the query has {shown(query)}: {error}") from None
        interval = self.of.interval if options.interval is msgspec.UNSET else options.interval
        records, shape = records_in(bytes(self.body), content_type)
        snapshot, rows = await self.of.predict(records, interval)
        self.identify(snapshot, records[0])
        if not options.gate:
            for row in rows:
                row.gate = msgspec.UNSET
        if shape == "lines":
            self.set_header("Content-Type", LINES[0])
            self.finish(msgspec.json.Encoder().encode_lines(rows))
        else:
            self.answer(rows[0] if shape == "object" else rows)


class _Explain(_Posted):
    """Explain one row, a list of rows, or rows in JSON Lines, by members, experts and inputs.

    The contributions of inputs, the baseline and holding add up to the prediction, given the gate.
    """

    route = "/explain"

    async def post(self) -> None:
        records, shape = records_in(bytes(self.body), self.request.headers.get("Content-Type", ""))
        self.of.admit(records, MOST_EXPLAINED, self.of.explained)
        snapshot = self.of.snapshot()
        (found,) = answers(snapshot, [records], explanations)
        if isinstance(found, RequestError):
            raise found
        self.identify(snapshot, records[0])
        self.answer(found[0] if shape == "object" else found)


class _Infer(_Posted):
    """Predict the rows of tensors, one for each column; null is a missing value.

    As in the Open Inference Protocol, version 2, without its extension for binary data.
    """

    route = "/v2/infer"

    async def post(self, version: str | None = None) -> None:
        of = self.of
        _check_version(of.snapshot(), version)
        request = inference.request_in(bytes(self.body))
        records = inference.records_of(request)
        snapshot, rows = await of.predict(records, of.interval)
        self.identify(snapshot, records[0])
        self.answer(inference.response(snapshot, of.settings.name, request, rows))


class _Server(JsonHandler):
    """Name the server and its version."""

    route = "/v2"

    def get(self) -> None:
        self.answer(
            inference.ServerMetadata("streammoe", importlib.metadata.version("streammoe"), ["predict", "explain"])
        )


class _Model(JsonHandler):
    """Describe the columns of the model, and the parts of its predictions."""

    route = "/v2/models"

    def get(self, version: str | None = None) -> None:
        snapshot = self.of.published.latest
        if version is not None:
            _check_version(self.of.snapshot(), version)
        self.answer(inference.metadata(snapshot, self.of.settings.name, has_interval=self.of.interval > 0.0))


class _ModelReady(JsonHandler):
    """Tell whether the model predicts."""

    route = "/v2/models/ready"
    requires_password = False

    def get(self, version: str | None = None) -> None:
        _check_version(self.of.snapshot(), version)
        self.answer({"name": self.of.settings.name, "ready": True})


class _Alive(JsonHandler):
    """Tell whether requests are answered at all."""

    route = "/healthz"
    requires_password = False

    def get(self) -> None:
        self.answer({"live": True})


class _Ready(JsonHandler):
    """Tell whether it predicts, and whether what it predicts by is up to date."""

    route = "/readyz"
    requires_password = False

    def get(self) -> None:
        self.of.snapshot()
        if problem := self.of.problem:
            raise RequestError(503, problem)
        self.answer({"ready": True})


class _OpenApi(JsonHandler):
    """Describe all of this as OpenAPI 3.1."""

    route = "/openapi.json"

    def get(self) -> None:
        self.answer(self.of.document())


class _Docs(JsonHandler):
    """Describe it as a page, with a command for each path that works when it is pasted."""

    route = "/docs"

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", docs.POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        origin = f"{self.request.protocol}://{self.request.host}"
        self.finish(docs.page(self.of.document(), origin, self.of.settings.username))


class _NotFound(JsonHandler):
    SUPPORTED_METHODS = RequestHandler.SUPPORTED_METHODS
    route = "other"
    requires_password = False

    def prepare(self) -> None:
        super().prepare()
        self.refuse(404, "not found; /docs says what there is")


def _routes(model: str) -> list[Route]:
    """Return all that is served and described; what is to be answered besides is a row here."""
    asked = (415, 422, 429, 503)
    routes = [
        Route("/predict", _Predict, openapi.ROWS, asked, openapi.RECORDS, Options),
        Route("/explain", _Explain, {JSON: dict[str, Any] | list[dict[str, Any]]}, asked, openapi.RECORDS),
        Route("/v2", _Server, {JSON: inference.ServerMetadata}),
        *(Route(path, _Alive, {JSON: dict[str, bool]}) for path in ("/healthz", "/v2/health/live")),
        *(Route(path, _Ready, {JSON: dict[str, bool]}, (503,)) for path in ("/readyz", "/v2/health/ready")),
        Route("/openapi.json", _OpenApi, {JSON: dict}),
        Route("/docs", _Docs, {"text/html": str}),
    ]
    request, response = {JSON: inference.InferenceRequest}, {JSON: inference.InferenceResponse}
    for path, may_lack in ((model, ()), (f"{model}/versions/{{version}}", (404, 503))):
        routes += [
            Route(path, _Model, {JSON: inference.ModelMetadata}, may_lack),
            Route(f"{path}/ready", _ModelReady, {JSON: dict[str, str | bool]}, (*may_lack, 503)),
            Route(f"{path}/infer", _Infer, response, (*may_lack, *asked), request),
        ]
    return routes


def _check_version(snapshot: Snapshot, version: str | None) -> None:
    if version is not None and version != str(snapshot.version):
        raise RequestError(404, f"there is no version {shown(version)}, only {snapshot.version}: the model learns on")
