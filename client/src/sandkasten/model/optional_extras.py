"""The names and the version of the distributions, and how to install optional extras.

None is called `sandkasten` like the import and the command: the package of that name in the public
index belongs to another project, so no hint may say to install it.
"""

from __future__ import annotations

from typing import Final

DISTRIBUTION = "sandkasten-runtime"
"""What users install; it requires the client and has the extras."""
CLIENT_DISTRIBUTION = "sandkasten-client"
"""What this file is in."""
VERSION = "0.1.0"
DISTRIBUTIONS: Final = frozenset(
    {DISTRIBUTION, CLIENT_DISTRIBUTION, "sandkasten-server"}
    | {
        f"sandkasten-{plugin}"
        for plugin in (
            "agents",
            "build",
            "cloud",
            "cluster-store",
            "dagger",
            "docker",
            "e2b",
            "integrations",
            "kubernetes",
            "otel",
            "tools",
        )
    }
)
"""The distributions of this project: what they declare is refused to plugins of others."""
SECTION_EXTRAS: Final = {
    "backends.docker": "docker",
    "backends.kubernetes": "kubernetes",
    "backends.dagger": "dagger",
    "backends.fly": "fly",
    "backends.e2b": "e2b",
    "backends.modal": "modal",
    "agents": "agents",
    "agents.max_sandboxes": "tools",
    "models": "agents",
    "workflows": "agents",
    "retention.runs_seconds": "agents",
    "packages": "build",
    "compat": "server",
    "store": "postgres",
    "telemetry.content": "otel",
    "telemetry.endpoint": "otel",
    "telemetry.protocol": "otel",
    "listen": "server",
    "api_key": "server",
    "api_key_file": "server",
    "db_path": "server",
    "tls": "server",
    "http": "server",
    "drain_seconds": "server",
    "telemetry.log_level": "server",
    "telemetry.metrics": "server",
    "previews": "server",
    "jwt": "server",
    "recording": "server",
    "files": "server",
}
"""Sections of settings that other distributions of this project declare, with the extra that
installs each.
"""
DOCTOR_BACKENDS: Final = ("docker",)
"""Backends of those plugins that `doctor` reports even if they are not installed."""
ROUTE_EXTRAS: Final = {
    "/agents": "agents",
    "/execute": "agents",
    "/runs": "agents",
    "/workflow-runs": "agents",
    "/workflows": "agents",
    "/v1/agents": "agents",
    "/v1/execute": "agents",
    "/v1/runs": "agents",
    "/v1/workflow-runs": "agents",
    "/v1/workflows": "agents",
    "/v1/tools": "tools",
    "/e2b": "server",
}
"""Paths of the routes that plugins of this project serve, with the extra that has the plugin."""
ROUTE_PLUGINS: Final = {"/e2b": "e2b-protocol"}
"""The plugins of those paths whose plugin does not have the name of its extra."""
COMMAND_EXTRAS: Final = {
    "agent": "agents",
    "down": "docker",
    "image build": "build",
    "mcp": "mcp",
    "up": "docker",
    "workflow": "agents",
}
"""Commands that plugins of this project add, with the extra that has the plugin."""


def install_command(extra: str = "") -> str:
    """Return the command that installs the runtime, or that adds an extra to it."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
