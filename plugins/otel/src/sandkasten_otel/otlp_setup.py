"""Whether this process sends spans and metrics over OTLP, and where to. Implements
`ports.telemetry_plugins.Exporter`.

On if an endpoint is configured, by `telemetry.endpoint` or by the standard `OTEL_*` variables.
Spans are also on if the embedding program has a tracer provider. If all is off, nothing of
OpenTelemetry is imported.

A setting that cannot be served raises InvalidConfiguration. A variable may be meant for other
programs, so there a missing library is only a warning.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command
from sandkasten.ports.spans import UNTRACED
from sandkasten_otel.telemetry_settings import TelemetrySettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten.ports.spans import Tracing
    from sandkasten.ports.telemetry_plugins import MetricRegistry
    from sandkasten_otel.otlp_metrics import MetricsSender

log = logging.getLogger("sandkasten.telemetry")


@dataclass(frozen=True, slots=True)
class OtlpSetup:
    environment: Mapping[str, str]
    settings: TelemetrySettings = field(default_factory=TelemetrySettings)

    def tracing(self) -> Tracing:
        if self._disabled:
            return UNTRACED
        if "opentelemetry.trace" in sys.modules:
            from sandkasten_otel.otel_spans import OtelTracing, provider_of_program

            own = provider_of_program()
            if own is not None:
                return OtelTracing(own, content=self.settings.content)
        if self._wants("TRACES"):
            with self._required():
                from sandkasten_otel.piped_spans import PipedTracing, sampler
                from sandkasten_otel.span_pipe import open_pipe

                pipe = open_pipe(self._protocol("TRACES"), self.settings.endpoint)
                content = self.settings.content
                return PipedTracing(pipe.put, sampler(self.environment), content=content)
        return UNTRACED

    def metrics(self, registry: MetricRegistry) -> MetricsSender | None:
        """Return what sends the metrics of a registry, if that is wanted."""
        if self._wants("METRICS") and not self._disabled:
            with self._required():
                from sandkasten_otel.otlp_metrics import MetricsSender

                return MetricsSender(registry, self._protocol("METRICS"), self.settings.endpoint)
        return None

    @property
    def _disabled(self) -> bool:
        return self._variable("OTEL_SDK_DISABLED").lower() == "true"

    def _wants(self, what: str) -> bool:
        if self._variable(f"OTEL_{what}_EXPORTER") == "none":
            return False
        return bool(self.settings.endpoint or self._otlp(what, "ENDPOINT"))

    def _protocol(self, what: str) -> str:
        return self.settings.protocol or self._otlp(what, "PROTOCOL") or "http/protobuf"

    def _otlp(self, what: str, name: str) -> str:
        own = self._variable(f"OTEL_EXPORTER_OTLP_{what}_{name}")
        return own or self._variable(f"OTEL_EXPORTER_OTLP_{name}")

    def _variable(self, name: str) -> str:
        return self.environment.get(name, "").strip()

    @contextmanager
    def _required(self) -> Iterator[None]:
        """Name what is missing or wrong; the block is left without a result if that is allowed."""
        try:
            yield
            return
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] not in ("opentelemetry", "grpc", "google"):
                raise
            problem = InvalidConfiguration(
                f"OTLP requires the library {exc.name}, which is not installed",
                hint=install_command("otel"),
                setting="telemetry.endpoint",
            )
        except (ValueError, TypeError) as exc:
            problem = InvalidConfiguration(
                f"OTLP could not be configured: {exc}",
                hint="check telemetry.endpoint and the OTEL_ variables",
                setting="telemetry.endpoint",
            )
        if self.settings.endpoint is not None:
            raise problem
        fields = {"error": problem.message, "hint": problem.hint}
        log.warning("telemetry.unavailable", extra={"sandkasten": fields})
