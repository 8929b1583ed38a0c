"""The one list of routes; the app serves it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.api.routes import fs, images, ports, pty, sessions, system, workspaces

if TYPE_CHECKING:
    from sandkasten.api.routing import Route

ALL: tuple[Route, ...] = (
    *system.ROUTES,
    *sessions.ROUTES,
    *pty.ROUTES,
    *ports.ROUTES,
    *fs.ROUTES,
    *workspaces.ROUTES,
    *images.ROUTES,
)
