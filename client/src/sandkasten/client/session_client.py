"""A daemon and its sessions as objects: the asynchronous client.

A session is a sandbox; `SandboxClient` holds the connection that sessions share. `sync.py` has the
twins. Every failure is a class of `errors`.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Self, Unpack

from sandkasten.client.agents import AsyncAgents, AsyncRunEvents
from sandkasten.client.blocking.twins import handing
from sandkasten.client.caller_input import check_keywords, takes
from sandkasten.client.sandbox import AsyncSandbox
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import held, open_transport
from sandkasten.client.transfer.transfer import blocks_of
from sandkasten.errors import FileTrouble, InvalidRequest, SandkastenError
from sandkasten.model.request_spellings import sandbox_options
from sandkasten.model.sandbox.sandbox_options import SessionKeywords
from sandkasten.model.sandbox.sandbox_values import CreateRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from os import PathLike
    from types import TracebackType

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.client.server.transport import Transport
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten.model.sandbox.workspace import Workspace

DEFAULT_URL = "http://localhost:8080"


class AsyncSession(AsyncSandbox):
    """A sandbox of a daemon. Leaving an `async with` block destroys it."""

    def __init__(self, client: SandboxClient, info: Info) -> None:
        """Made by `SandboxClient.create_session` and `get_session`."""
        super().__init__(url=client.base_url)
        self._client = client
        self._place = client._place
        self._wanted = None
        self._info = info
        self._id = info.id

    @property
    def id(self) -> str:
        """Return the id, also after the session has ended."""
        assert self._id is not None
        return self._id

    async def transport(self) -> Transport:
        return await self._client.transport()

    async def destroy(self) -> None:
        """Destroy it and everything in it. Twice is fine."""
        await self.close()

    async def upload(  # type: ignore[override]
        self,
        file: str | PathLike[str] | IO[bytes],
        *,
        dest_path: str = "/workspace",
        filename: str | None = None,
    ) -> builtins.list[str]:
        """Copy a local or open file into the directory `dest_path`; returns its path there.

        An open file without a name requires `filename`. `AsyncSandbox.upload` copies trees.
        """
        opened = None if hasattr(file, "read") else file
        name = filename or os.path.basename(str(getattr(file, "name", "") or opened or ""))
        if not name or name in (".", "..") or "/" in name:
            raise InvalidRequest(
                "filename is required for a file without a name",
                hint="pass filename",
                field="filename",
            )
        where = str(PurePosixPath(dest_path) / name)
        if opened is None:
            entry = await self.write(where, file)  # type: ignore[arg-type]
            return [entry.path]
        try:
            with await asyncio.to_thread(Path(opened).open, "rb") as source:
                entry = await self.write(where, blocks_of(source))
        except SandkastenError:
            raise
        except OSError as exc:
            raise FileTrouble(
                f"reading {opened} failed: {exc.strerror or exc}", hint="check the path"
            ) from exc
        return [entry.path]


class SandboxClient:
    """A daemon. Holds connections open until it is closed; sessions live on without it."""

    def __init__(self, *, base_url: str | None = None, api_key: str | None = None) -> None:
        """Sends nothing yet. Without arguments SANDKASTEN_URL and SANDKASTEN_API_KEY are used."""
        self._url = base_url or os.environ.get("SANDKASTEN_URL") or DEFAULT_URL
        self._place: ServerAddress = place_of(url=self._url, api_key=api_key)
        self._agents = AsyncAgents._at(self._place)
        self._transport: Transport | None = None
        self._holder: AsyncGenerator[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_url(self) -> str:
        """Return the address of the daemon."""
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url})"

    @takes(SessionKeywords)
    async def create_session(
        self, *, image: str | None = None, **options: Unpack[SessionKeywords]
    ) -> AsyncSession:
        """Create a session, or with `session_key` return the live one of that key.

        `workspace_id` names a workspace that outlives the session, created at first use.
        """
        check_keywords("create_session", SessionKeywords, options)
        request = CreateRequest(
            sandbox_options({"image": image, **options}), session_key=options.get("session_key")
        )
        return AsyncSession(self, await (await self.transport()).create(request))

    async def get_session(self, session_id: str) -> AsyncSession:
        """Return an existing session; SessionNotFound or SessionExpired if there is none."""
        return AsyncSession(self, await (await self.transport()).get(session_id))

    async def list_sessions(self, *, usage: bool = False) -> builtins.list[Info]:
        """Return every session, oldest first; with `usage` also what each of them uses."""
        infos = await (await self.transport()).list(usage=usage)
        return sorted(infos, key=lambda info: info.created_at)

    async def list_workspaces(self) -> builtins.list[Workspace]:
        """Return the named workspaces."""
        return builtins.list(await (await self.transport()).workspaces.list())

    async def delete_workspace(self, workspace_id: str) -> None:
        """Delete a workspace with everything in it; Conflict while a session uses it."""
        await (await self.transport()).workspaces.delete(workspace_id)

    agents = handing(AsyncAgents.agents)
    workflows = handing(AsyncAgents.workflows)
    run_agent = handing(AsyncAgents.run_agent)
    run_workflow = handing(AsyncAgents.run_workflow)
    get_run = handing(AsyncAgents.get_run)
    runs = handing(AsyncAgents.runs)
    cancel_run = handing(AsyncAgents.cancel_run)
    resume_run = handing(AsyncAgents.resume_run)
    tools = handing(AsyncAgents.tools)
    call_tool = handing(AsyncAgents.call_tool)

    def run_events(self, run_id: str, *, since_seq: int = 0) -> AsyncRunEvents:
        """Return the events of a run, from the first to its end."""
        return self._agents.run_events(run_id, since_seq=since_seq)

    async def close(self) -> None:
        """Close the connections. Sessions and runs live on; the next call reconnects."""
        await self._agents.close()
        holder, self._holder, self._transport = self._holder, None, None
        if holder is not None and self._loop is asyncio.get_running_loop():
            await holder.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def transport(self) -> Transport:
        """Return the connection of this loop, opened on first use; it ends with the loop."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport = await open_transport(self._place)
            self._holder = await held(self._transport)
            self._loop = loop
        return self._transport
