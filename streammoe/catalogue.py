"""Catalogues of Prometheus metrics, and the live metrics of one."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client import Metric as MetricFamily
from prometheus_client.registry import Collector

Kind = TypeVar("Kind", bound=Counter | Gauge | Histogram)
Labels = TypeVar("Labels", bound=tuple[str, ...])


class Metric(NamedTuple):
    """One row of a catalogue."""

    kind: type[Counter | Gauge | Histogram]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


PACKAGES = {
    "version": "streammoe",
    "numba": "numba",
    "numpy": "numpy",
    "kafka_python": "kafka-python",
    "confluent_kafka": "confluent-kafka",
}
"""The packages whose versions are shown, by their labels."""


def revision() -> str:
    """Return the commit that this program was built from: what an image says, or pip of a repository; else empty."""
    if given := os.environ.get("STREAMMOE_REVISION"):
        return given
    with suppress(PackageNotFoundError, ValueError, AttributeError):
        found = json.loads(distribution("streammoe").read_text("direct_url.json") or "{}")
        return str(found.get("vcs_info", {}).get("commit_id", ""))
    return ""


COMMON: dict[str, Metric] = {
    "streammoe_build_info": Metric(
        Gauge, "Always 1; the labels are the versions that run", ("revision", *PACKAGES, "python")
    )
}
"""What every catalogue has."""


def memory_limit() -> float:
    """Return the bytes of memory that this process may use: those of its cgroup if that has a limit, or the machine's.

    From version 2 of cgroups, which containers and systemd limit.
    """
    of_machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("0::/")[2].strip()
        return min(of_machine, float(Path("/sys/fs/cgroup", group, "memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such file, or "max"
        return of_machine


class LiveMetrics(Collector):
    """The metrics of a catalogue by their names, in a registry of their own, next to those of the process.

    Args:
        catalogue: the metrics, `COMMON` among them.
        refresh: called before each scrape, in its thread.
    """

    def __init__(self, catalogue: Mapping[str, Metric], refresh: Callable[[], None] = lambda: None) -> None:
        # For all registries of the process, whose metrics are ours alone.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._refresh = refresh
        self.registry.register(self)  # first, since a registry asks collectors in this order
        ProcessCollector(registry=self.registry)
        self._of: dict[str, Counter | Gauge | Histogram] = {}
        self._shown: dict[str, set[Any]] = {}
        """The labels that `show` has set, by the names of metrics."""
        self.add(catalogue)
        versions = (revision(), *map(_version, PACKAGES.values()), platform.python_version())
        self.gauge("streammoe_build_info", *versions).set(1)

    def add(self, catalogue: Mapping[str, Metric]) -> None:
        """Add the metrics of another catalogue."""
        for name, metric in catalogue.items():
            more: dict[str, Any] = {"buckets": metric.buckets} if metric.buckets else {}
            self._of[name] = metric.kind(name, metric.help, metric.labels, registry=self.registry, **more)

    def collect(self) -> Iterable[MetricFamily]:
        """Look anew before the metrics are collected; there are none besides."""
        self._refresh()
        return ()

    def show(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set series by their labels, of a counter their totals, and remove those that are not among them."""
        for gone in self._shown.get(name, set()) - values.keys():
            self._of[name].remove(*gone)
        for labels, value in values.items():
            if isinstance(self._of[name], Gauge):
                self.gauge(name, *labels).set(value)
            else:
                self.counter(name, *labels).reset()
                self.counter(name, *labels).inc(value)
        self._shown[name] = {*values}

    def counter(self, name: str, *labels: str) -> Counter:
        """Return a counter, or its series of these labels."""
        return self._series(Counter, name, *labels)

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return a gauge, or its series of these labels."""
        return self._series(Gauge, name, *labels)

    def histogram(self, name: str) -> Histogram:
        """Return a histogram."""
        return self._series(Histogram, name)

    def _series(self, kind: type[Kind], name: str, *labels: str) -> Kind:
        metric = self._of[name].labels(*labels) if labels else self._of[name]
        assert isinstance(metric, kind)  # noqa: S101 - for the type checker; the catalogue says so
        return metric


def _version(package: str) -> str:
    """Return the version of a package, or nothing if it is not installed, which Prometheus shows as no label."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
