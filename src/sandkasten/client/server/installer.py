"""The installer of a daemon on an engine, as a Protocol: `client.server.embedded` opens one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sandkasten.model.installation_values import (
        Drawn,
        InstallationRequest,
        Installed,
        Removed,
        Standing,
    )


class Installer(Protocol):
    async def up(self, asked: InstallationRequest) -> Installed: ...

    async def drawn(self, asked: InstallationRequest) -> Drawn: ...

    async def status(self) -> Standing: ...

    async def down(self, *, keep_sessions: bool, volumes: bool) -> Removed: ...
