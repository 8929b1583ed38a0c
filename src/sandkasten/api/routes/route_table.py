"""The list of all routes; the application serves it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.api.dashboard import dashboard_routes
from sandkasten.api.routes import (
    code,
    execs,
    files,
    fs,
    images,
    oneshots,
    pause,
    ports,
    previews,
    pty,
    runs,
    sessions,
    stage,
    stats,
    system,
    tools,
    workspaces,
)
from sandkasten.api.routes.access import audit, keys, login, recordings, secrets, tenant_usage

if TYPE_CHECKING:
    from sandkasten.api.route import Route

ALL: tuple[Route, ...] = (
    *system.ROUTES,
    *dashboard_routes.ROUTES,
    *sessions.ROUTES,
    *execs.ROUTES,
    *recordings.ROUTES,
    *code.ROUTES,
    *stats.ROUTES,
    *pause.ROUTES,
    *oneshots.ROUTES,
    *pty.ROUTES,
    *ports.ROUTES,
    *previews.ROUTES,
    *files.ROUTES,
    *stage.ROUTES,
    *keys.ROUTES,
    *login.ROUTES,
    *tenant_usage.ROUTES,
    *audit.ROUTES,
    *fs.ROUTES,
    *workspaces.ROUTES,
    *secrets.ROUTES,
    *images.ROUTES,
    *runs.ROUTES,
    *tools.ROUTES,
)
