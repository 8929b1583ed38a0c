"""What the entry point of the group `sandkasten.telemetry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.telemetry_plugins import TelemetryPlugin
from sandkasten_otel.telemetry_settings import TelemetrySettings

if TYPE_CHECKING:
    from sandkasten.ports.telemetry_plugins import Exporter, TelemetryContext


def _open(context: TelemetryContext) -> Exporter:
    from sandkasten_otel.otlp_setup import OtlpSetup

    return OtlpSetup(context.environ, context.settings.of(TelemetrySettings))


PLUGIN: Final = TelemetryPlugin("otel", _open)
