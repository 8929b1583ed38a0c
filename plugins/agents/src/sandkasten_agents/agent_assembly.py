"""Build the agent service from an engine, the definitions and the models.

For a daemon, which resumes runs after a crash, and for a separate process, which does not. A
missing library is UnsupportedByBackend; a separate process also requires the server.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sandkasten.client.server.embedded import require_installed
from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.optional_extras import install_command
from sandkasten_agents.agent_settings import AgentSettings
from sandkasten_agents.provider_settings import KEY_VARIABLES, ProviderSettings
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.shared_store import shared_store
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_runtime.store.run_directory import RunDirectory
from sandkasten_tools.tool_settings import ToolSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.ports import EventSink, FileStore, Runs
    from sandkasten_agents.agent_service import AgentService
    from sandkasten_agents.loop.loop_limits import LoopLimits
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.route_plugins import RouteRecords
    from sandkasten_server.daemon.transient_file_store import FilesBeside


@asynccontextmanager
async def agent_service(
    settings: Settings,
    engine: Engine,
    files: FileStore,
    *,
    recovers: bool,
    events: EventSink | None = None,
    records: RouteRecords | None = None,
) -> AsyncIterator[AgentService]:
    """Open the service; UnsupportedByBackend if the libraries are not installed.

    With `recovers` (a daemon), settle the runs of dead processes, and leave workflow runs for the
    next daemon at shutdown. `records`: the records of a shared database, which then has the runs.
    """
    # In a thread: importing the libraries takes as long as a hundred requests.
    await asyncio.to_thread(_load)
    from sandkasten_agents.agent_service import AgentService
    from sandkasten_agents.chat.model_settings import Models, ModelSettings
    from sandkasten_agents.definitions.library import Library
    from sandkasten_agents.loop.loop_limits import LoopLimits
    from sandkasten_agents.workflows.expressions import Expressions
    from sandkasten_agents.workflows.workflow_runner import WorkflowRunner
    from sandkasten_tools.calls.toolbox import Toolbox

    runs: Runs = (
        RunDirectory(settings.data_dir.absolute() / "runs") if records is None else records.runs()
    )
    rules = settings.of(AgentSettings)
    max_sandboxes = settings.of(ToolSettings).max_sandboxes
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
            toolbox=Toolbox(engine, StagePublish(engine.files, files), max_sandboxes),
            library=Library([*rules.agent_dirs, *rules.workflow_dirs]),
            models=Models(
                default=model,
                providers={
                    endpoint.name: ModelSettings(
                        base_url=endpoint.base_url,
                        api_key=endpoint.api_key or "",
                        timeout_s=rules.model_timeout_s,
                        url_name=f"models.{endpoint.name}.base_url",
                        key_name=KEY_VARIABLES.get(endpoint.name, ""),
                    )
                    for endpoint in settings.of(ProviderSettings).endpoints
                },
                default_name=rules.model or "",
                key_names=KEY_VARIABLES,
            ),
            runner=WorkflowRunner(expressions, tracing=engine.tracing),
            clock=SystemClock(),
            limits=_limited(LoopLimits(), rules),
            settings=rules,
            recovers=recovers,
            events=events,
        ) as service,
    ):
        yield service


def _load() -> None:
    try:
        import sandkasten_agents.agent_service
        import sandkasten_agents.workflows.workflow_runner  # noqa: F401  (imported to have them loaded)

        if find_spec("cel") is None:
            # Imported with the first workflow; report a missing library before that.
            raise ModuleNotFoundError("No module named 'cel'", name="cel")
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sandkasten"):
            raise
        raise UnsupportedByBackend(
            f"agents require the library {exc.name}, which is not installed",
            hint=install_command("agents"),
        ) from exc


def _limited(limits: LoopLimits, rules: AgentSettings) -> LoopLimits:
    """Apply the operator's settings, which are ceilings and also bound the defaults."""
    from dataclasses import replace

    return replace(
        limits,
        max_steps=min(limits.max_steps, rules.max_steps),
        most_steps=rules.max_steps,
        max_tokens=rules.max_tokens,
        most_tokens=rules.max_tokens,
        timeout_s=min(limits.timeout_s, rules.timeout_s),
        most_timeout_s=rules.timeout_s,
        max_depth=rules.max_depth,
    )


@asynccontextmanager
async def local_agents(
    settings: Settings, beside: FilesBeside | None = None
) -> AsyncIterator[AgentService]:
    """Open agents of this process as the operator, also beside a running daemon."""
    with require_installed("the server", "server"):
        from sandkasten_server.daemon.shared_records import shared_records
        from sandkasten_server.daemon.transient_file_store import TransientFileStore
    prepare_data_dir(settings.data_dir)
    async with shared_store(settings) as shared:
        engine = await open_engine(settings, shared=shared)
        try:
            files = TransientFileStore(settings, beside)
            records = None if shared is None else shared_records(settings, shared)
            async with agent_service(
                settings, engine, files, recovers=False, records=records
            ) as service:
                yield service
        finally:
            await engine.aclose()
