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
from prometheus_client import Counter, Gauge, Histogram
from tornado.web import RequestHandler

from streammoe.catalogue import COMMON, LiveMetrics, Metric
from streammoe.estimators import Explanation
from streammoe.rows import Row
from streammoe.serving import inference, openapi, page
from streammoe.serving.answers import (
    LINES,
    Failure,
    Problem,
    RequestError,
    answers,
    explanations,
    ignored,
    predicted_rows,
    records_in,
)
from streammoe.serving.figures import History, experts_of
from streammoe.serving.openapi import JSON, Route
from streammoe.serving.snapshot import Snapshot
from streammoe.settings import ServeSettings
from streammoe.text import shown
from streammoe.web.exposition import Exposition
from streammoe.web.listener import Handler, Listener

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
        interval: probability of predictive intervals, unless a request names another; 0 leaves them out.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    def __init__(self, settings: ServeSettings, interval: float) -> None:
        self.settings, self.interval = settings, interval
        self.latest: Snapshot | None = None
        """What predicts; None before the first one."""
        self._status: dict[str, Any] = {"problem": "starting"}
        self._shown_at, self._history = time.monotonic(), History()
        self._experts, self._describe_at = list[dict[str, Any]](), -math.inf
        self._described: Snapshot | None = None
        self.metrics = LiveMetrics({**COMMON, **OF_SERVING})
        self.metrics.gauge("streammoe_snapshot_age_seconds").set_function(self._age)
        self.registry = self.metrics.registry
        self._waiting: dict[float, list[tuple[list[bytes], asyncio.Future[Any]]]] = {}
        # Of each their own, so that explanations, which take longer, leave predictions theirs.
        self.predicted = Budget(settings.rows_per_second)
        self.explained = Budget(settings.rows_per_second / EXPLANATION_ROWS)
        self.routes = _routes(f"/v2/models/{settings.name}")
        paths: list[tuple[str, type[Handler]]] = [(each.pattern, _handler(each)) for each in self.routes]
        paths += [*page.ROUTES, ("/metrics", Exposition), (".*", _NotFound)]
        self.listener = Listener(settings, paths, self, settings.max_body_bytes)
        self.url = self.listener.url

    def close(self) -> None:
        """Answer what has come, and stop serving."""
        self.listener.close()

    def take(self, snapshot: Snapshot) -> None:
        """Predict by this from here on; compilation (cached after the first time) keeps no client waiting."""
        if self.latest is None or self.latest.model.options != snapshot.model.options:
            answers(snapshot, [[b"{}"]], partial(predicted_rows, interval=self.interval))
        self.latest = snapshot

    def show(self, status: dict[str, Any]) -> None:
        """Take what there is to show; its ``problem`` says why it is not ready, and is empty if it is."""
        self._history.add(status)
        self._status, self._shown_at = status, time.monotonic()
        self._describe()

    @property
    def problem(self) -> str:
        """Why it is not ready; empty if it is."""
        silent = time.monotonic() - self._shown_at
        return f"nothing was heard for {silent:.0f} s" if silent > SILENT_SECONDS else str(self._status["problem"])

    def status(self) -> dict[str, Any]:
        """Return what was shown last, and how it went since the start."""
        rate = self._history.events_per_second
        own = {"problem": self.problem, "experts": self._experts, "events_per_second": rate}
        return {**self._status, **own, "history": self._history.points}

    def _describe(self) -> None:
        """Find what experts of the latest snapshot are in words, which takes a while for a wide model."""
        snapshot, started = self.latest, time.monotonic()
        if snapshot is not None and snapshot is not self._described and started >= self._describe_at:
            model = snapshot.model
            self._experts, self._described = experts_of(model, model.coefficients()), snapshot
            self._describe_at = time.monotonic() + (time.monotonic() - started) / DESCRIBING_SHARE

    def _age(self) -> float:
        return math.nan if self.latest is None else time.monotonic() - self.latest.taken_at

    def snapshot(self, version: str | None = None) -> Snapshot:
        """Return the latest snapshot; raise `RequestError` if nothing was learned yet, or another version is meant."""
        found = self.latest
        if found is None or not found.version:
            raise RequestError(503, self.problem or "nothing was learned yet")
        if version not in {None, str(found.version)}:
            learned = f"only {found.version}: the model learns on"
            raise RequestError(404, f"there is no version {shown(version)}, {learned}")
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
    """A handler that answers in JSON what a route says, and errors likewise."""

    content_type = JSON
    of: PredictionServer
    route: Route
    shape = ""
    """That of the records in the body, which their answer gets too."""

    def prepare(self) -> None:
        super().prepare()
        if not self.route.body:
            return
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            self.refuse(415, "the body is compressed; send it as it is, without Content-Encoding")
        elif "Inference-Header-Content-Length" in self.request.headers:
            self.refuse(415, "binary tensors are not read; send them as JSON, in most clients by binary_data=False")

    async def get(self, **arguments: str) -> None:
        found = await self.route.answer(self, **arguments)
        if self.shape == "lines":
            self.set_header("Content-Type", LINES[0])
            self.finish(msgspec.json.Encoder().encode_lines(found))
        else:
            found = found[0] if self.shape == "object" else found
            self.finish(found if isinstance(found, str) else _encode(found))

    post = get

    def on_finish(self) -> None:
        super().on_finish()
        metrics = self.of.metrics
        metrics.counter("streammoe_http_requests_total", self.route.path, str(self.get_status())).inc()
        metrics.histogram("streammoe_http_request_seconds").observe(self.request.request_time())

    def say(self, status: int, text: str, problems: Sequence[Problem] = ()) -> None:
        self.set_status(status)
        self.finish(_encode(Failure(text, [*problems])))

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None, None))[1]
        if isinstance(error, RequestError):
            if error.status in {429, 503}:
                self.set_header("Retry-After", "1")
            self.say(error.status, str(error), error.problems)
        else:
            super().write_error(status_code, **more)

    def log_exception(self, type_: Any, value: Any, traceback: Any) -> None:
        if not isinstance(value, RequestError):
            super().log_exception(type_, value, traceback)

    def records(self) -> list[bytes]:
        """Return the records of the body."""
        found, self.shape = records_in(bytes(self.body), self.request.headers.get("Content-Type", ""))
        return found

    def identify(self, snapshot: Snapshot, record: bytes) -> None:
        """Say in headers which model answers, and what it ignores in a record."""
        self.set_header("Streammoe-Version", str(snapshot.version))
        if snapshot.digest is not None:
            self.set_header("Streammoe-Digest", snapshot.digest)
        if len(snapshot.positions_in_ascii) <= MOST_POSITIONS:
            self.set_header("Streammoe-Positions", snapshot.positions_in_ascii)
        if names := ignored(snapshot, record):
            self.set_header("Streammoe-Ignored", json.dumps(names))


async def _predict(asked: JsonHandler) -> list[Row]:
    """Predict one row, a list of rows, or rows in JSON Lines.

    The answer has the same shape. Its headers say which model has predicted: Streammoe-Version, the number of events
    that it has learned, Streammoe-Digest of its latest checkpoint and Streammoe-Positions, where it reads on;
    Streammoe-Ignored names columns of the first row that it does not know, misspelt ones perhaps. A row that the stream
    would reject rejects the whole request.
    """
    query = {name: asked.get_query_argument(name) for name in asked.request.query_arguments}
    try:
        options = msgspec.convert(query, Options, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(400, f"the query has {shown(query)}: {error}") from None
    interval = asked.of.interval if options.interval is msgspec.UNSET else options.interval
    records = asked.records()
    snapshot, rows = await asked.of.predict(records, interval)
    asked.identify(snapshot, records[0])
    if not options.gate:
        for row in rows:
            row.gate = msgspec.UNSET
    return rows


async def _explain(asked: JsonHandler) -> list[Explanation]:
    """Explain one row, a list of rows, or rows in JSON Lines, by members, experts and inputs.

    The contributions of inputs, the baseline and holding add up to the prediction, given the gate.
    """
    records = asked.records()
    asked.of.admit(records, MOST_EXPLAINED, asked.of.explained)
    snapshot = asked.of.snapshot()
    (found,) = answers(snapshot, [records], explanations)
    if isinstance(found, RequestError):
        raise found
    asked.identify(snapshot, records[0])
    return found


async def _infer(asked: JsonHandler, version: str | None = None) -> inference.InferenceResponse:
    """Predict the rows of tensors, one for each column; null is a missing value.

    As in the Open Inference Protocol, version 2, without its extension for binary data.
    """
    asked.of.snapshot(version)
    request = inference.request_in(bytes(asked.body))
    records = inference.records_of(request)
    snapshot, rows = await asked.of.predict(records, asked.of.interval)
    asked.identify(snapshot, records[0])
    return inference.response(snapshot, asked.of.settings.name, request, rows)


async def _server(_: JsonHandler) -> inference.ServerMetadata:
    """Name the server and its version."""
    return inference.ServerMetadata("streammoe", importlib.metadata.version("streammoe"), ["predict", "explain"])


async def _model(asked: JsonHandler, version: str | None = None) -> inference.ModelMetadata:
    """Describe the columns of the model, and the parts of its predictions."""
    of = asked.of
    return inference.metadata(of.snapshot(version), of.settings.name, has_interval=of.interval > 0.0)


async def _model_ready(asked: JsonHandler, version: str | None = None) -> dict[str, str | bool]:
    """Tell whether the model predicts."""
    asked.of.snapshot(version)
    return {"name": asked.of.settings.name, "ready": True}


async def _alive(_: JsonHandler) -> dict[str, bool]:
    """Tell whether requests are answered at all."""
    return {"live": True}


async def _ready(asked: JsonHandler) -> dict[str, bool]:
    """Tell whether it predicts, and whether what it predicts by is up to date."""
    asked.of.snapshot()
    if problem := asked.of.problem:
        raise RequestError(503, problem)
    return {"ready": True}


async def _openapi(asked: JsonHandler) -> openapi.Json:
    """Describe all of this as OpenAPI 3.1."""
    return openapi.document(asked.of.routes, asked.of.settings, asked.of.latest)


async def _docs(asked: JsonHandler) -> str:
    """Describe it as a text, with a command for each path that works when it is pasted."""
    asked.set_header("Content-Type", "text/plain; charset=utf-8")
    asked.set_header("X-Content-Type-Options", "nosniff")
    origin = f"{asked.request.protocol}://{asked.request.host}"
    return openapi.in_words(await _openapi(asked), origin, asked.of.settings.username)


class _NotFound(JsonHandler):
    SUPPORTED_METHODS = RequestHandler.SUPPORTED_METHODS
    route = Route("other", _docs)

    def prepare(self) -> None:
        super().prepare()
        self.refuse(404, "not found; /docs says what there is")


def _handler(route: Route) -> type[JsonHandler]:
    methods = ("POST",) if route.body else JsonHandler.SUPPORTED_METHODS
    own = {"route": route, "requires_password": not route.is_open, "SUPPORTED_METHODS": methods}
    return type("RouteHandler", (JsonHandler,), own)


def _routes(model: str) -> list[Route]:
    """Return all that is served and described; what is to be answered besides is a row here."""
    routes = [
        Route("/predict", _predict, openapi.RECORDS, Options),
        Route("/explain", _explain, openapi.RECORDS),
        Route("/v2", _server),
        *(Route(path, _alive, is_open=True) for path in ("/healthz", "/v2/health/live")),
        *(Route(path, _ready, is_open=True) for path in ("/readyz", "/v2/health/ready")),
        Route("/openapi.json", _openapi),
        Route("/docs", _docs),
    ]
    for path in (model, f"{model}/versions/{{version}}"):
        infer = Route(f"{path}/infer", _infer, {JSON: inference.InferenceRequest})
        routes += [Route(path, _model), Route(f"{path}/ready", _model_ready, is_open=True), infer]
    return routes
