"""Events counted for Prometheus.

In its own registry, so that two engines of one process, or other metrics of the program, do not
collide. Labels come from small closed sets: no id and no path ever becomes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Summary,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from sandkasten.model.sandbox.network_policy import NetworkCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Value = str | int | float | bool | None
    Fields = Mapping[str, Value]

_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120, 600, 3600)
_REQUEST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 30, 600)
_MAKING = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RUN_MS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 120_000, 600_000, 3_600_000)


class Metrics:
    """Implements `ports.EventSink`; `render` returns the exposition text."""

    def __init__(self, version: str = "") -> None:
        # Else each counter and histogram has one more series, with the time when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._runs = counter(
            "station_sandbox_runs_total", "One-shot runs that were answered", "runtime", "ok"
        )
        self._run_ms = Histogram(
            "station_sandbox_run_duration_ms",
            "How long the code of a one-shot ran",
            ("runtime",),
            registry=registry,
            buckets=_RUN_MS,
        )
        self._sessions = Gauge(
            "sandkasten_sessions",
            "Sessions in the ledger",
            ("state", "backend"),
            registry=registry,
        )
        self._create = Histogram(
            "sandkasten_create_seconds",
            "From the request to a sandbox that takes commands",
            ("source",),
            registry=registry,
            buckets=_MAKING,
        )
        self._exec = Histogram(
            "sandkasten_exec_seconds",
            "From the start of a command to its end",
            ("status",),
            registry=registry,
            buckets=_QUICK,
        )
        # A histogram of every route would be most of what a small daemon exports.
        self._http = Summary(
            "sandkasten_http_request_seconds",
            "From a request's headers to the end of its answer",
            ("method", "route", "status"),
            registry=registry,
        )
        self._http_duration = Histogram(
            "sandkasten_http_duration_seconds",
            "The same for all routes of a method, in buckets",
            ("method",),
            registry=registry,
            buckets=_REQUEST,
        )
        self._hits = counter("sandkasten_pool_hits_total", "Requests that the warm pool served")
        self._misses = counter(
            "sandkasten_pool_misses_total", "Requests that the warm pool did not serve", "reason"
        )
        self._passed_over = counter(
            "sandkasten_backend_passed_over_total",
            "Creates that went to the next backend of a rule, because this one was unavailable",
            "backend",
            "next",
        )
        self._reaped = counter("sandkasten_reaped_total", "Removed by the reaper", "reason")
        self._bytes = counter("sandkasten_output_bytes_total", "Written by commands", "stream")
        self._connections = counter(
            "sandkasten_network_connections_total", "Connections of sandboxes", "verdict"
        )
        self._traffic = counter(
            "sandkasten_network_bytes_total", "Bytes that sandboxes exchanged", "direction"
        )
        self._open_connections = Gauge(
            "sandkasten_network_open_connections",
            "Open connections of sandboxes",
            registry=registry,
        )
        self._counted = NetworkCounts()
        self._errors = counter("sandkasten_errors_total", "Errors answered over HTTP", "code")
        self._events = counter("sandkasten_events_total", "Events of the engine", "event")
        self._backend_up = Gauge(
            "sandkasten_backend_up",
            "Whether a backend answers that was away since the start",
            ("backend",),
            registry=registry,
        )
        self._max_sandboxes = Gauge(
            "sandkasten_backend_max_sandboxes",
            "Most sandboxes of a named backend",
            ("backend",),
            registry=registry,
        )
        build = Gauge("sandkasten_build_info", "Always 1", ("version",), registry=registry)
        build.labels(version).set(1)
        self._seen_sessions: set[tuple[str, str]] = set()
        self._known: dict[str, Callable[[Fields], None]] = {
            "backend.away": lambda f: self._answers(f, 0),
            "backend.back": lambda f: self._answers(f, 1),
            "sandbox.created": self._created,
            "sandbox.claimed": self._claimed,
            "pool.missed": lambda f: self._misses.labels(_text(f, "reason")).inc(),
            "backend.passed_over": lambda f: self._passed_over.labels(
                _text(f, "backend"), _text(f, "next")
            ).inc(),
            "sandbox.reaped": lambda f: self._reaped.labels(_text(f, "reason")).inc(),
            "exec.finished": self._exec_finished,
            "sandbox_run_finished": self._run_finished,
            "http.answered": self._answered,
            "http.error": lambda f: self._errors.labels(_text(f, "code")).inc(),
        }

    def emit(self, event: str, fields: Fields) -> None:
        counted = self._known.get(event)
        if counted is not None:
            counted(fields)
        if not event.startswith("http."):
            self._events.labels(event).inc()

    def update(self, sessions: Mapping[tuple[str, str], int], network: NetworkCounts) -> None:
        """Set what is not counted by events. `sessions` counts them by state and backend."""
        self._count_network(network)
        self._seen_sessions.update(sessions)
        for key in self._seen_sessions:
            self._sessions.labels(*key).set(sessions.get(key, 0))

    def render(
        self, sessions: Mapping[tuple[str, str], int], network: NetworkCounts
    ) -> tuple[bytes, str]:
        """Return the text and its content type."""
        self.update(sessions, network)
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def _count_network(self, now: NetworkCounts) -> None:
        before, self._counted = self._counted, now
        verdict, direction = self._connections.labels, self._traffic.labels
        verdict("allowed").inc(max(0, now.opened - before.opened))
        verdict("refused").inc(max(0, now.refused - before.refused))
        verdict("failed").inc(max(0, now.failed - before.failed))
        verdict("would_refuse").inc(max(0, now.would_refuse - before.would_refuse))
        direction("in").inc(max(0, now.bytes_in - before.bytes_in))
        direction("out").inc(max(0, now.bytes_out - before.bytes_out))
        self._open_connections.set(now.open)

    def limit(self, backend: str, max_sandboxes: int) -> None:
        """Show the number of sandboxes that a backend may have."""
        self._max_sandboxes.labels(backend).set(max_sandboxes)

    def _answers(self, fields: Fields, value: int) -> None:
        # A place of a backend, such as a namespace, shows nothing about the others.
        if "place" not in fields:
            self._backend_up.labels(_text(fields, "backend")).set(value)

    def _created(self, fields: Fields) -> None:
        self._create.labels(_text(fields, "source")).observe(_number(fields, "seconds"))

    def _claimed(self, fields: Fields) -> None:
        self._hits.inc()
        self._create.labels("pool").observe(_number(fields, "seconds"))

    def _exec_finished(self, fields: Fields) -> None:
        self._exec.labels(_text(fields, "status")).observe(_number(fields, "seconds"))
        for stream in ("stdout", "stderr"):
            self._bytes.labels(stream).inc(_number(fields, f"{stream}_bytes"))

    def _run_finished(self, fields: Fields) -> None:
        if fields.get("error") is not None:
            # No code ran, so there is no duration; the error is counted as one.
            return
        runtime = _text(fields, "runtime")
        self._runs.labels(runtime, "true" if fields.get("ok") else "false").inc()
        self._run_ms.labels(runtime).observe(_number(fields, "duration_ms"))

    def _answered(self, fields: Fields) -> None:
        method, seconds = _text(fields, "method"), _number(fields, "seconds")
        self._http.labels(method, _text(fields, "route"), _text(fields, "status")).observe(seconds)
        self._http_duration.labels(method).observe(seconds)


def _text(fields: Fields, name: str) -> str:
    return str(fields.get(name, "unknown"))


def _number(fields: Fields, name: str) -> float:
    value = fields.get(name)
    return max(0.0, float(value)) if isinstance(value, int | float) else 0.0
