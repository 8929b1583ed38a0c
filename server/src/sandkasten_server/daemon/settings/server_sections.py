"""The settings of the HTTP server and of the daemon's records as a plugin."""

from __future__ import annotations

from typing import Final

from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten_runtime.store.record_rules import FileRules, RecordingRules
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.request.jwt_rules import TokenRules
from sandkasten_server.daemon.settings.http_settings import HttpSettings

PLUGIN: Final = SettingsPlugin(
    "server",
    (
        "listen",
        "api_key",
        "api_key_file",
        "db_path",
        "tls",
        "http",
        "drain_seconds",
        "telemetry.log_level",
        "telemetry.metrics",
        "previews",
        "jwt",
        "recording",
        "files",
    ),
    (
        HttpSettings,
        HttpLimits,
        PreviewRules,
        TokenRules,
        RecordingRules,
        FileRules,
    ),
)
