"""Which plugin reports spans and metrics, and what happens without one."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.plugins.installed import Installed
from sandkasten.plugins.plugin_failure import REMEDY
from sandkasten.ports import UNTRACED
from sandkasten.ports.telemetry_plugins import TelemetryPlugin
from sandkasten_runtime.assembly import telemetry_catalog
from sandkasten_runtime.assembly.settings import resolver
from sandkasten_runtime.assembly.telemetry_catalog import NoExporter, open_exporter
from sandkasten_server.daemon.metrics import Metrics

INSTALL = "pip install 'sandkasten-runtime[otel]'"


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes these plugins the installed ones, and their settings too."""

    def replaced(*plugins, problems=()):
        exporters = Installed(plugins, {}, problems)
        monkeypatch.setattr(telemetry_catalog, "telemetry_plugins", lambda: exporters)
        left = [plugin for plugin in resolver.INSTALLED.settings if plugin.name != "telemetry"]
        monkeypatch.setattr(
            resolver, "INSTALLED", replace(resolver.INSTALLED, settings=tuple(left))
        )

    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return replaced


def _warnings(caplog):
    return [(record.message, record.sandkasten) for record in caplog.records]


def test_without_a_plugin_nothing_is_reported(tmp_path, install, caplog):
    install()
    exporter = open_exporter(resolver.load({}, {}, tmp_path))
    assert exporter.tracing() is UNTRACED
    assert exporter.metrics(Metrics().registry) is None
    assert _warnings(caplog) == []


def test_the_plugin_opens_the_exporter_from_settings_and_environment(
    tmp_path, install, monkeypatch
):
    seen = []
    spans, metrics = object(), object()

    def opened(context):
        seen.append((context.settings, context.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]))
        return SimpleNamespace(tracing=lambda: spans, metrics=lambda _: metrics)

    install(TelemetryPlugin("mine", opened))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    settings = resolver.load({}, {}, tmp_path)
    named = open_exporter(settings)
    assert [named.tracing(), named.metrics(Metrics().registry)] == [spans, metrics]
    assert seen == [(settings, "http://127.0.0.1:9")]


def test_two_plugins_are_refused(tmp_path, install):
    install(*(TelemetryPlugin(name, lambda _: NoExporter()) for name in ("mine", "other")))
    with pytest.raises(InvalidConfiguration, match="mine and other both provide reports of spans"):
        open_exporter(resolver.load({}, {}, tmp_path))


def test_a_plugin_that_cannot_be_used_is_a_warning(tmp_path, install, caplog, monkeypatch):
    install(problems=("it is of another version",))
    open_exporter(resolver.load({}, {}, tmp_path))
    unusable = ("plugin.unusable", {"message": "it is of another version"})
    assert _warnings(caplog) == [unusable]
    caplog.clear()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    open_exporter(resolver.load({}, {}, tmp_path))
    error = "OTEL_EXPORTER_OTLP_ENDPOINT is set, and it is of another version"
    fields = {"error": error, "hint": REMEDY}
    assert _warnings(caplog) == [unusable, ("telemetry.unavailable", fields)]


@pytest.mark.parametrize(
    "name",
    [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    ],
)
def test_without_the_plugin_a_standard_variable_is_a_warning(
    tmp_path, install, caplog, monkeypatch, name
):
    install()
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert open_exporter(resolver.load({}, {}, tmp_path)).tracing() is UNTRACED
    fields = {"error": f"{name} is set, and the extra otel is not installed", "hint": INSTALL}
    assert _warnings(caplog) == [("telemetry.unavailable", fields)]
    caplog.clear()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    open_exporter(resolver.load({}, {}, tmp_path))
    assert _warnings(caplog) == []


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        ({"telemetry.endpoint": "http://127.0.0.1:9"}, {}, ""),
        ({}, {"SANDKASTEN_TELEMETRY_ENDPOINT": "http://127.0.0.1:9"}, ""),
        ({}, {}, "telemetry: {endpoint: 'http://127.0.0.1:9'}\n"),
    ],
    ids=["flag", "variable", "file"],
)
@pytest.mark.parametrize("server", [True, False], ids=["with-server", "runtime-alone"])
def test_without_the_plugin_a_configured_endpoint_is_refused_with_the_command_to_install_it(
    tmp_path, install, monkeypatch, flags, environ, text, server
):
    install()
    if not server:
        monkeypatch.setattr(resolver, "INSTALLED", replace(resolver.INSTALLED, settings=()))
    (tmp_path / "sandkasten.yaml").write_text(text)
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load(flags, environ, tmp_path)
    assert INSTALL in error.value.hint
