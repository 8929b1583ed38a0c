"""The location of the files of a request: a session or a named workspace.

A workspace is reached through a sandbox that uses it; the sandbox's other files are not part of the
workspace and cannot be named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_server.api.files.file_names import given_name

if TYPE_CHECKING:
    from sandkasten_server.api.request.http_call import Call


@dataclass(frozen=True, slots=True)
class Spot:
    sandbox_id: str
    workspace_only: bool = False

    def named(
        self,
        text: str | None,
        b64: str | None = None,
        *,
        field: str = "path",
        otherwise: str | None = None,
    ) -> str:
        return self.within(given_name(text, b64, field=field, otherwise=otherwise))

    def within(self, name: str) -> str:
        """Return the path inside the sandbox; InvalidRequest if it is outside the location."""
        if self.workspace_only and name == "/":
            return WORKSPACE
        path = sandbox_path(name)
        if self.workspace_only and path != WORKSPACE and not path.startswith(WORKSPACE + "/"):
            raise InvalidRequest(
                "the path is not inside the workspace",
                hint=f"give it relative to the workspace, or below {WORKSPACE}",
                field="path",
            )
        return path


Place = Callable[["Call"], AbstractAsyncContextManager[Spot]]
"""Finds the spot and checks that it is this tenant's; held for as long as the files are used."""


@asynccontextmanager
async def of_session(call: Call) -> AsyncIterator[Spot]:
    yield Spot(await call.session())
