"""What the plugin provides, and how it reads its settings."""

from __future__ import annotations

import os

from sandkasten.ports.telemetry_plugins import TelemetryContext
from sandkasten_otel.otlp_setup import OtlpSetup
from sandkasten_otel.telemetry_settings import TelemetrySettings
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.telemetry_catalog import telemetry_plugins


def test_the_plugin_is_installed():
    installed = telemetry_plugins()
    assert ([plugin.name for plugin in installed.plugins], installed.problems) == (["otel"], ())


def test_the_exporter_has_the_values_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "box")
    values = {
        "telemetry.endpoint": "http://127.0.0.1:9",
        "telemetry.protocol": "grpc",
        "telemetry.content": "false",
    }
    (plugin,) = telemetry_plugins().plugins
    exporter = plugin.open(TelemetryContext(load(values, {}, tmp_path), os.environ))
    assert isinstance(exporter, OtlpSetup)
    assert exporter.settings == TelemetrySettings("http://127.0.0.1:9", "grpc", False)
    assert exporter.environment["OTEL_SERVICE_NAME"] == "box"
