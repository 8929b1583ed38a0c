"""What reports spans and metrics to another system, as a plugin: one value that can be imported
without the library that it wraps.

A distribution brings one as an entry point of the group `sandkasten.telemetry`, and at most one may
be installed. Its settings are sections of a `SettingsPlugin`. Log lines and the metrics of
`/metrics` need no plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sandkasten.ports.spans import Tracing
    from sandkasten.ports.store_plugins import SectionValues

TELEMETRY_GROUP: Final = "sandkasten.telemetry"


class MetricSample(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class MetricFamily(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def documentation(self) -> str: ...
    @property
    def type(self) -> str:
        """`counter`, `gauge`, `histogram`, or another type of Prometheus."""
        ...

    @property
    def samples(self) -> Sequence[MetricSample]: ...


class MetricRegistry(Protocol):
    """The metrics of a daemon, as the registry of Prometheus' library returns them."""

    def collect(self) -> Iterable[MetricFamily]: ...


class MetricsSender(Protocol):
    @property
    def interval_s(self) -> float:
        """How often `send` is called."""
        ...

    def send(self) -> None:
        """Send every metric once. May block for a few seconds, and is called in a thread."""
        ...


class Exporter(Protocol):
    """What is open. Its methods may block, and raise InvalidConfiguration if what the settings ask
    for cannot be sent.
    """

    def tracing(self) -> Tracing:
        """Return what reports spans; `UNTRACED` if none are to be reported."""
        ...

    def metrics(self, registry: MetricRegistry) -> MetricsSender | None:
        """Return what sends the metrics of a registry; None if none are to be sent."""
        ...


@dataclass(frozen=True, slots=True)
class TelemetryContext:
    """Values that a plugin gets to open its exporter."""

    settings: SectionValues
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TelemetryPlugin:
    name: str
    open: Callable[[TelemetryContext], Exporter]
    """Returns the exporter of the settings, without importing what it does not use."""
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
