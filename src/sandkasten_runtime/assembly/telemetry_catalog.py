"""The installed plugin that reports spans and metrics, and what happens without one.

A setting of such a plugin is then refused with the command that installs it, like every setting of
a plugin. A standard variable may be meant for other programs, so it is only a warning.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from sandkasten.model.optional_extras import install_command
from sandkasten.plugins.installed import installed, only
from sandkasten.plugins.plugin_failure import REMEDY, opening
from sandkasten.ports import UNTRACED
from sandkasten.ports.telemetry_plugins import (
    TELEMETRY_GROUP,
    TelemetryContext,
    TelemetryPlugin,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.plugins.installed import Installed
    from sandkasten.ports import Tracing
    from sandkasten.ports.store_plugins import SectionValues
    from sandkasten.ports.telemetry_plugins import Exporter, MetricRegistry, MetricsSender

log = logging.getLogger("sandkasten.telemetry")
_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


class NoExporter:
    """Implements `ports.telemetry_plugins.Exporter` without reporting anything."""

    def tracing(self) -> Tracing:
        return UNTRACED

    def metrics(self, registry: MetricRegistry) -> None:
        return None


class NamedExporter:
    """Implements `ports.telemetry_plugins.Exporter`: an exception of a plugin names it."""

    def __init__(self, plugin: TelemetryPlugin, context: TelemetryContext) -> None:
        self._name = plugin.name
        with opening(TELEMETRY_GROUP, self._name):
            self._exporter = plugin.open(context)

    def tracing(self) -> Tracing:
        with opening(TELEMETRY_GROUP, self._name):
            return self._exporter.tracing()

    def metrics(self, registry: MetricRegistry) -> MetricsSender | None:
        with opening(TELEMETRY_GROUP, self._name):
            return self._exporter.metrics(registry)


def telemetry_plugins() -> Installed[TelemetryPlugin]:
    return installed(TELEMETRY_GROUP, TelemetryPlugin)


def open_exporter(settings: SectionValues) -> Exporter:
    """Return what reports spans and metrics as the settings and the environment ask. Raise
    InvalidConfiguration if several plugins are installed.
    """
    installed_plugins = telemetry_plugins()
    for problem in installed_plugins.problems:
        log.warning("plugin.unusable", extra={"sandkasten": {"message": problem}})
    if installed_plugins.plugins:
        plugin = only(installed_plugins.plugins, "reports of spans")
        return NamedExporter(plugin, TelemetryContext(settings, os.environ))
    _warn_of_variables(os.environ, installed_plugins.problems)
    return NoExporter()


def _warn_of_variables(environ: Mapping[str, str], problems: Sequence[str]) -> None:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    reason, hint = "the extra otel is not installed", install_command("otel")
    if problems:
        reason, hint = problems[0], REMEDY
    for name in _ENDPOINTS:
        if environ.get(name, "").strip():
            fields = {"error": f"{name} is set, and {reason}", "hint": hint}
            log.warning("telemetry.unavailable", extra={"sandkasten": fields})
            return
