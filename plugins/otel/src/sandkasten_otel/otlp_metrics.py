"""The metrics of a daemon over OTLP, for collectors that do not read `/metrics`.

Imported only where an endpoint is configured. The numbers and names are those of the Prometheus
registry; nothing is counted twice. An unreachable collector costs one log line per attempt.
"""

from __future__ import annotations

import logging
import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from sandkasten.model.optional_extras import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.ports.telemetry_plugins import MetricFamily, MetricRegistry, MetricSample

log = logging.getLogger("sandkasten.telemetry")
_EXPORTERS: Final = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "http": "opentelemetry.exporter.otlp.proto.http.metric_exporter",
}
_TIMEOUT_MS: Final = 5000
_DEFAULT_INTERVAL_S: Final = 60.0


class MetricsSender:
    def __init__(self, registry: MetricRegistry, protocol: str, endpoint: str | None) -> None:
        """What the settings leave open (`endpoint` is None), the `OTEL_*` variables decide."""
        kind = "grpc" if protocol == "grpc" else "http"
        if endpoint is not None and kind == "http":
            endpoint = endpoint.rstrip("/") + "/v1/metrics"
        self._exporter = import_module(_EXPORTERS[kind]).OTLPMetricExporter(endpoint=endpoint)
        self.interval_s = _interval_s()
        self._registry = registry
        self._began_ns = time.time_ns()
        self._resource = Resource.create({"service.name": "sandkasten", "service.version": VERSION})

    def send(self) -> None:
        """Send every metric once. Blocks for at most five seconds; call it in a thread."""
        metrics = metrics_data(self._registry, self._resource, self._began_ns, time.time_ns())
        result = self._exporter.export(metrics, timeout_millis=_TIMEOUT_MS)
        if result is not MetricExportResult.SUCCESS:
            log.warning("telemetry.unsent", extra={"sandkasten": {"what": "metrics"}})


def _interval_s() -> float:
    """Return the standard interval, by default a minute."""
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    return max(0.05, int(text[:12]) / 1000) if text.isdecimal() else _DEFAULT_INTERVAL_S


def metrics_data(
    registry: MetricRegistry, resource: Resource, began_ns: int, now_ns: int
) -> MetricsData:
    """Return what a Prometheus registry holds now, in OpenTelemetry's form."""
    metrics = [
        _metric(family, began_ns, now_ns)
        for family in registry.collect()
        if family.type in ("counter", "gauge", "histogram")
    ]
    scope = InstrumentationScope("sandkasten", VERSION)
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(family: MetricFamily, began_ns: int, now_ns: int) -> Metric:
    data: Sum | Gauge | Histogram
    # A summary without quantiles is a histogram with one bucket.
    if family.type in ("histogram", "summary"):
        points = [_histogram(group, began_ns, now_ns) for group in _groups(family.samples)]
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
        return Metric(family.name, family.documentation, "", data)
    numbers = [
        NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value)
        for sample in family.samples
    ]
    if family.type == "gauge":
        return Metric(family.name, family.documentation, "", Gauge(numbers))
    data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    # Prometheus' names of counters end so, and its library leaves that out of the family's name.
    return Metric(f"{family.name}_total", family.documentation, "", data)


def _groups(samples: Iterable[MetricSample]) -> list[list[MetricSample]]:
    """Return the samples of each combination of labels."""
    groups: dict[tuple[tuple[str, str], ...], list[MetricSample]] = {}
    for sample in samples:
        key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        groups.setdefault(key, []).append(sample)
    return list(groups.values())


def _histogram(samples: list[MetricSample], began_ns: int, now_ns: int) -> HistogramDataPoint:
    bounds, counts, total, below = [], [], 0.0, 0.0
    labels: dict[str, str] = {}
    bucketed = any(sample.name.endswith("_bucket") for sample in samples)
    for sample in samples:
        if sample.name.endswith("_bucket"):
            labels = {k: v for k, v in sample.labels.items() if k != "le"}
            counts.append(int(sample.value - below))
            below = sample.value
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            total = sample.value
        elif not bucketed:
            labels = dict(sample.labels)
            counts.append(int(sample.value))
    return HistogramDataPoint(
        labels, began_ns, now_ns, sum(counts), total, counts, bounds, min=0.0, max=0.0
    )
