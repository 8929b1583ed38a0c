"""The one list of routes; the app serves it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.api.routes import ports, pty, sessions, system

if TYPE_CHECKING:
    from sandkasten.api.routing import Route

ALL: tuple[Route, ...] = (*system.ROUTES, *sessions.ROUTES, *pty.ROUTES, *ports.ROUTES)
