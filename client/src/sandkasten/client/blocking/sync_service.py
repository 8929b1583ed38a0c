"""A daemon and its sessions for blocking code: twins of `session_client.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sandkasten.client import session_client
from sandkasten.client.agents import RunEvents
from sandkasten.client.blocking import loop_thread
from sandkasten.client.blocking.sync import Sandbox
from sandkasten.client.blocking.twins import giving, waiting, waiting_for
from sandkasten.client.session_client import AsyncSession

if TYPE_CHECKING:
    from types import TracebackType


class Session(Sandbox):
    """A sandbox of a daemon. Leaving a `with` block destroys it."""

    _twin: AsyncSession

    def __init__(self, twin: AsyncSession) -> None:
        """Made by `SandboxClient.create_session` and `get_session`."""
        self._twin = twin

    destroy = waiting(AsyncSession.destroy)
    upload = waiting(AsyncSession.upload)  # type: ignore[arg-type]


class SandboxClient:
    """A daemon. Holds connections open until it is closed; sessions live on without it."""

    def __init__(self, *, base_url: str | None = None, api_key: str | None = None) -> None:
        """Sends nothing yet. Without arguments SANDKASTEN_URL and SANDKASTEN_API_KEY are used."""
        self._twin = session_client.SandboxClient(base_url=base_url, api_key=api_key)

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def base_url(self) -> str:
        """Return the address of the daemon."""
        return self._twin.base_url

    create_session = waiting_for(Session, session_client.SandboxClient.create_session)
    get_session = waiting_for(Session, session_client.SandboxClient.get_session)
    list_sessions = waiting(session_client.SandboxClient.list_sessions)
    list_workspaces = waiting(session_client.SandboxClient.list_workspaces)
    delete_workspace = waiting(session_client.SandboxClient.delete_workspace)
    agents = waiting(session_client.SandboxClient.agents)
    workflows = waiting(session_client.SandboxClient.workflows)
    run_agent = waiting(session_client.SandboxClient.run_agent)
    run_workflow = waiting(session_client.SandboxClient.run_workflow)
    get_run = waiting(session_client.SandboxClient.get_run)
    runs = waiting(session_client.SandboxClient.runs)
    cancel_run = waiting(session_client.SandboxClient.cancel_run)
    resume_run = waiting(session_client.SandboxClient.resume_run)
    run_events = giving(RunEvents, session_client.SandboxClient.run_events)
    tools = waiting(session_client.SandboxClient.tools)
    call_tool = waiting(session_client.SandboxClient.call_tool)
    close = waiting(session_client.SandboxClient.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop_thread.run(self._twin.__aexit__(kind, error, trace))
