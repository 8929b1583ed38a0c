"""The one list of routes; the app serves it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.api.routes import (
    audit,
    execs,
    files,
    fs,
    images,
    keys,
    ports,
    pty,
    run,
    runs,
    sessions,
    staging,
    stats,
    system,
    tools,
    workspaces,
)

if TYPE_CHECKING:
    from sandkasten.api.routing import Route

ALL: tuple[Route, ...] = (
    *system.ROUTES,
    *sessions.ROUTES,
    *execs.ROUTES,
    *stats.ROUTES,
    *run.ROUTES,
    *pty.ROUTES,
    *ports.ROUTES,
    *files.ROUTES,
    *staging.ROUTES,
    *keys.ROUTES,
    *audit.ROUTES,
    *fs.ROUTES,
    *workspaces.ROUTES,
    *images.ROUTES,
    *runs.ROUTES,
    *tools.ROUTES,
)
