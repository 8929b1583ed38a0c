"""Settings of traces: where spans are sent, and whether they show what users sent and got."""

from __future__ import annotations

from typing import Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, choice, string


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    endpoint: str | None = setting(
        "telemetry.endpoint",
        string,
        None,
        "Where spans are sent over OTLP, such as http://localhost:4318; OTEL_ variables work too.",
    )
    protocol: str | None = setting(
        "telemetry.protocol",
        choice("http/protobuf", "grpc"),
        None,
        "How spans are sent: http/protobuf (the default) or grpc.",
    )
    content: bool = setting(
        "telemetry.content",
        boolean,
        True,
        "Whether spans show the beginning of inputs and outputs, without what looks like a secret.",
    )


PLUGIN: Final = SettingsPlugin(
    "telemetry",
    ("telemetry.endpoint", "telemetry.protocol", "telemetry.content"),
    (TelemetrySettings,),
)
