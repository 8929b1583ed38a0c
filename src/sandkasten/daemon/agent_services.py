"""The agent service, built from an engine, the definitions and the models.

For a daemon, which resumes runs after a crash, and for a plain process, which does not. The
libraries of agents are an extra: UnsupportedByBackend names a missing one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.settings.provider_settings import KEY_VARIABLES
from sandkasten.daemon.shared_store import shared_store
from sandkasten.engine.clock import SystemClock
from sandkasten.engine.storage.stage_publish import StagePublish
from sandkasten.errors import Busy, SandkastenError, UnsupportedByBackend
from sandkasten.model.optional_extras import install_command
from sandkasten.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sandkasten.agents.agent_service import AgentService
    from sandkasten.daemon.settings.agent_settings import AgentSettings
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.daemon.shared_store import SharedStore
    from sandkasten.daemon.transient_file_store import FilesBeside
    from sandkasten.engine.engine import Engine
    from sandkasten.model.runs.run_values import (
        Definition,
    )
    from sandkasten.ports import EventSink, FileStore, Runs

log = logging.getLogger("sandkasten.daemon")
# Runs of a killed process are settled within a minute: half of it to find them, half to act.
_LOOK_EVERY_S: Final = 25.0
Definitions: TypeAlias = "Sequence[Definition]"


@asynccontextmanager
async def agent_service(
    settings: Settings,
    engine: Engine,
    files: FileStore,
    *,
    recovers: bool,
    events: EventSink | None = None,
    shared: SharedStore | None = None,
) -> AsyncIterator[AgentService]:
    """Open the service; UnsupportedByBackend if the libraries are not installed.

    With `recovers` (a daemon), settle the runs of dead processes, and leave workflow runs for the
    next daemon at shutdown. `shared`: the database with the runs, if `store.url` is set.
    """
    # In a thread: importing the libraries takes as long as a hundred requests.
    await asyncio.to_thread(_load)
    from sandkasten.agents.agent_service import AgentService, ServiceRules
    from sandkasten.agents.chat.model_settings import Models, ModelSettings
    from sandkasten.agents.definitions.library import Library
    from sandkasten.agents.loop.loop_limits import LoopLimits
    from sandkasten.agents.tools.toolbox import Toolbox
    from sandkasten.agents.workflows.expressions import Expressions
    from sandkasten.agents.workflows.workflow_runner import WorkflowRunner

    if shared is None:
        runs: Runs = RunDirectory(settings.data_dir.absolute() / "runs")
    else:
        from sandkasten.store.postgres.postgres_runs import PostgresRuns

        runs = PostgresRuns(shared.database)
    rules = settings.agents
    model = None
    if rules.base_url is not None:
        model = ModelSettings(
            base_url=rules.base_url,
            api_key=rules.api_key or "",
            model=rules.model or "",
            timeout_s=rules.model_timeout_s,
        )
    async with (
        Expressions() as expressions,
        AgentService(
            engine=engine,
            runs=runs,
            toolbox=Toolbox(engine, StagePublish(engine.files, files)),
            library=Library([*rules.agent_dirs, *rules.workflow_dirs]),
            models=Models(
                default=model,
                providers={
                    one.name: ModelSettings(
                        base_url=one.base_url,
                        api_key=one.api_key or "",
                        timeout_s=rules.model_timeout_s,
                        url_name=f"models.{one.name}.base_url",
                        key_name=KEY_VARIABLES.get(one.name, ""),
                    )
                    for one in settings.providers
                },
                default_name=rules.model or "",
                key_names=KEY_VARIABLES,
            ),
            runner=WorkflowRunner(expressions, tracing=engine.tracing),
            clock=SystemClock(),
            limits=_limits(rules, LoopLimits()),
            rules=ServiceRules(
                max_concurrent=rules.max_concurrent,
                retention_s=rules.retention_s,
                recovers=recovers,
            ),
            events=events,
        ) as service,
    ):
        yield service


def _load() -> None:
    try:
        import sandkasten.agents.agent_service
        import sandkasten.agents.workflows.workflow_runner  # noqa: F401  (imported to have them loaded)

        if find_spec("cel") is None:
            # Imported with the first workflow; report a missing library before that.
            raise ModuleNotFoundError("No module named 'cel'", name="cel")
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "sandkasten":
            raise
        raise UnsupportedByBackend(
            f"agents require the library {exc.name}, which is not installed",
            hint=install_command("agents"),
        ) from exc


async def any_runs(data_dir: Path, shared: SharedStore | None = None) -> bool:
    """Return whether there is any run; most daemons never have one."""
    if shared is not None:
        return await shared.database.fetch_one("SELECT 1 FROM runs LIMIT 1") is not None
    try:
        return bool(os.listdir(data_dir / "runs"))
    except OSError:
        return False


class LazyAgents:
    """The agents of a daemon, opened on first use because importing them is slow."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[AgentService]]) -> None:
        self._opened = opened
        self._opening = asyncio.Lock()
        self._held: AbstractAsyncContextManager[AgentService] | None = None
        self._service: AgentService | None = None
        self._soon: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> LazyAgents:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def open(self) -> AgentService:
        async with self._opening:
            if self._service is None:
                if self._closed:
                    raise Busy("the daemon is shutting down", hint="try again")
                held = self._opened()
                self._service = await held.__aenter__()
                self._held = held
            return self._service

    def open_for_runs(self, any_run: Callable[[], Awaitable[bool]]) -> None:
        """Open as soon as there is a run, which a dead process may have left."""
        self._soon = asyncio.get_running_loop().create_task(self._wait_for_runs(any_run))

    async def drain(self, deadline_s: float) -> None:
        if self._service is not None:
            await self._service.drain(deadline_s)

    async def aclose(self) -> None:
        """Twice is fine."""
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            await asyncio.wait([self._soon])
        async with self._opening:
            held, self._held = self._held, None
            if held is not None:
                await held.__aexit__(None, None, None)

    async def _wait_for_runs(self, any_run: Callable[[], Awaitable[bool]]) -> None:
        # Runs are created by other processes, so there is no event to wait for.
        while True:
            with suppress(SandkastenError):
                if await any_run():
                    break
            await asyncio.sleep(_LOOK_EVERY_S)
        try:
            await self.open()
        except SandkastenError as exc:
            log.warning("agents.unavailable", extra={"sandkasten": {"error": exc.message}})


def _limits(rules: AgentSettings, plain: Any) -> Any:
    """Apply the operator's settings, which are ceilings and also bound the defaults."""
    from dataclasses import replace

    return replace(
        plain,
        max_steps=min(plain.max_steps, rules.max_steps),
        most_steps=rules.max_steps,
        max_tokens=rules.max_tokens,
        most_tokens=rules.max_tokens,
        timeout_s=min(plain.timeout_s, rules.timeout_s),
        most_timeout_s=rules.timeout_s,
        max_depth=rules.max_depth,
    )


@asynccontextmanager
async def local_agents(
    settings: Settings, beside: FilesBeside | None = None
) -> AsyncIterator[AgentService]:
    """Open agents of this process as the operator, also beside a running daemon."""
    from sandkasten.daemon.transient_file_store import TransientFileStore

    prepare_data_dir(settings.data_dir)
    async with shared_store(settings) as shared:
        engine = await open_engine(settings, shared=shared)
        try:
            files = TransientFileStore(settings, beside)
            async with agent_service(
                settings, engine, files, recovers=False, shared=shared
            ) as service:
                yield service
        finally:
            await engine.aclose()
