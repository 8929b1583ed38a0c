"""Run one command in a temporary sandbox with its own root, and return what it changed.

Implements `ports.Workbench`. The sandbox has the dev profile and only the network of its step, and
is gone when the block ends, however it ends. A command that fails raises BuildFailed with the end
of its output; the hint names what the network refused.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten.errors import BuildFailed, SandkastenError, UnsupportedByBackend
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult
from sandkasten.model.sandbox.cell_spec import BUILD_WORKSPACE
from sandkasten.model.sandbox.network_refusals import rule_for
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports import Pausable, Readable
from sandkasten_runtime.engine.placement.backend_survey import readiness_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import RootChanges
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.ports import Sites
    from sandkasten_runtime.engine.commands.execution import Execution
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.planner import Planner
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes

# A generous bound that no request chose, so its space is not reserved.
DISK_MB: Final = 8192
_LABELS: Final = {"sandkasten.build": "step"}
_TAIL_LINES: Final = 20
_MOST_LINE: Final = 500


class BuildSandbox:
    def __init__(
        self,
        planner: Planner,
        sandboxes: Sandboxes,
        execution: Execution,
        handles: Handles,
        sites: Sites,
    ) -> None:
        self._sites = sites
        self._planner = planner
        self._sandboxes = sandboxes
        self._execution = execution
        self._handles = handles

    def network(self, value: object) -> NetworkPolicy:
        return self._planner.permitted_network(value)

    async def check(self) -> None:
        request = CreateRequest(SandboxOptions(profile="dev", labels=_LABELS))
        backend = (await self._planner.choice.default_if_allowed(request)).backend
        readiness = await readiness_of(backend)
        if readiness.ready and "dev_profile" in readiness.lacks:
            raise UnsupportedByBackend(
                "the commands of a build require profile dev, which an ordinary user cannot have "
                "here",
                hint="build it as root; images of packages alone, such as datascience, require no "
                "root",
                backend=backend.name,
            )

    @asynccontextmanager
    async def run(
        self,
        image: Image,
        command: tuple[str, ...],
        *,
        cwd: str,
        env: Mapping[str, str],
        network: NetworkPolicy,
        pip: tuple[str, ...],
        on_line: Callable[[str], None],
    ) -> AsyncIterator[RootChanges]:
        request = CreateRequest(
            SandboxOptions(
                profile="dev",
                network=network.public(),
                pip_packages=pip,
                limits={"workspace_mb": DISK_MB},
                labels=_LABELS,
            )
        )
        chosen = await self._planner.choice.default_if_allowed(request)
        plan = await self._planner.plan(request, image=image, sites=self._sites, chosen=chosen)
        if not plan.backend.capabilities.reads_changes:
            raise _cannot_tell(plan.backend.name)
        longest_s = plan.spec.limits.max_exec_timeout_s
        lease = replace(plan.lease, idle_timeout_s=longest_s, lifetime_s=longest_s * 2)
        spec = replace(plan.spec, reserve_disk=False, workspace_at=BUILD_WORKSPACE)
        record = await self._sandboxes.make(replace(plan, spec=spec, lease=lease))
        try:
            handle, _ = await self._handles.connect(record.id)
            cell = handle.cell
            if not isinstance(cell, Readable):
                raise _cannot_tell(record.backend)
            # Checked once before anything runs: a step of an hour must not fail at its end.
            with cell.changes():
                pass
            execution = ExecRequest(command, cwd=cwd, env=env, timeout_seconds=longest_s)
            await self._execute(record, execution, network, on_line)
            async with _still(cell):
                with ExitStack() as stack:
                    yield await asyncio.to_thread(stack.enter_context, cell.changes())
        finally:
            await finish(self._remove(record))

    async def _execute(
        self,
        record: Record,
        request: ExecRequest,
        network: NetworkPolicy,
        on_line: Callable[[str], None],
    ) -> None:
        lines = _Lines(on_line)
        result: ExecResult | None = None
        async for item in self._execution.stream(record.id, request):
            if isinstance(item, Chunk):
                lines.add(item.data)
            else:
                result = item
        lines.end()
        if result is None or result.exit_code != 0:
            raise BuildFailed(
                f"the command {_ending(result)}:\n" + "\n".join(lines.tail),
                hint=_hint(result, network),
                exit_code=None if result is None else result.exit_code,
            )

    async def _remove(self, record: Record) -> None:
        # The result is valid; the row is marked, and the reaper and the lease do the rest.
        with suppress(SandkastenError):
            await self._sandboxes.destroy(record.id)


@asynccontextmanager
async def _still(cell: object) -> AsyncIterator[None]:
    """Stop what the command left running, so that it does not write while the tree is read."""
    if not isinstance(cell, Pausable):
        yield
        return
    await cell.pause()
    try:
        yield
    finally:
        with suppress(SandkastenError):
            await cell.resume()


def _cannot_tell(backend: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"backend {backend} does not support reading what a command changed",
        hint="build with the local backend, as root",
        backend=backend,
    )


def _hint(result: ExecResult | None, network: NetworkPolicy) -> str:
    if result is not None and result.why is not None and result.why.hint:
        return result.why.hint
    refused = result.network.refused if result is not None and result.network is not None else ()
    shut = [refusal for refusal in refused if not refusal.unresolved]
    rules = [f"--allow {refusal.allow}" for refusal in shut if refusal.allow is not None]
    if rules:
        return f"the network refused what no rule allows; if it is needed: {' '.join(rules)}"
    if refused and not shut:
        return f"{refused[0].host} could not be looked up ({refused[0].rule}): {refused[0].hint}"
    if refused:
        named = ", ".join(rule_for(refusal.host, refusal.port) for refusal in shut)
        return f"the network refused {named}: {shut[0].hint}"
    if network.closed:
        return (
            "see the end of its output above; the step had no network: if it needs one, name what "
            "it may reach (--allow RULE, or network: {allow: [RULE]} in a recipe)"
        )
    return "see the end of its output above"


def _ending(result: ExecResult | None) -> str:
    if result is None or result.status == "lost":
        return "was lost with its sandbox"
    if result.why is not None:
        return f"was ended ({result.why.message})"
    if result.exit_code is not None:
        return f"failed with status {result.exit_code}"
    return f"was ended by signal {result.signal}"


class _Lines:
    """Output split into lines as it arrives; the last lines are kept."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in whole:
            self._tell(line)
        # A program that never ends its line must not fill our memory.
        if len(self._rest) > _MOST_LINE:
            self._tell(self._rest)
            self._rest = ""

    def end(self) -> None:
        if self._rest:
            self._tell(self._rest)
            self._rest = ""

    def _tell(self, line: str) -> None:
        line = line.rstrip("\r")[:_MOST_LINE]
        self.tail.append(line)
        self._on_line(line)
