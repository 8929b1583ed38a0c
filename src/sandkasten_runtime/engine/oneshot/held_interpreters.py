"""Interpreters that are started in a pooled sandbox, before a one-shot claims it.

The program `interpreter_prelude` waits in the sandbox for the command. The runner hands the command
over when its `exec.start` names the held program, and starts a fresh process if there is none that
is ready; so a failure here only costs time. The id is fixed: a process that finds the sandbox again
can use what another one started.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.language_runtimes import HELD_PYTHON, RUNTIMES, runtime_named
from sandkasten.model.sandbox.cell_spec import TMP, WORKSPACE, base_environment
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.frame_codec import HELD_EXEC
from sandkasten_runtime.wire.json_bodies import to_bytes_json

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import EventSink
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.planner import SandboxPlan
    from sandkasten_runtime.wire.channel import Channel

_PYTHON: Final = RUNTIMES["python"]
# Modules are imported meanwhile, on a machine that may be busy.
_READY_S: Final = 10.0
_READY: Final = b"\6"
_REASON_BYTES: Final = 200
_KILL: Final = 9
_REMOVE_S: Final = 1.0


class HeldInterpreters:
    def __init__(
        self, handles: Handles, modules: tuple[str, ...], events: EventSink | None
    ) -> None:
        self._handles = handles
        self._modules = modules
        self._events = events
        self._prelude: bytes | None = None

    def serves(self, plan: SandboxPlan) -> bool:
        """Return whether an interpreter is started for such a request."""
        runtime = None if plan.runtime is None else runtime_named(plan.runtime)
        return runtime is not None and runtime.held is not None

    async def prepare(self, record: Record, plan: SandboxPlan) -> None:
        """Start a Python interpreter and wait until it is ready; without python3 do nothing."""
        if not self.serves(plan):
            return
        handle = self._handles.peek(record.id)
        if handle is None:
            return
        channel = handle.channel
        if channel is None or HELD_EXEC not in channel.hello.features:
            return
        try:
            async with asyncio.timeout(_READY_S):
                reason = await hold_python(
                    channel,
                    f"{WORKSPACE}/{_PYTHON.main}",
                    self._program(),
                    base_environment(plan.spec).get("PYTHONPATH"),
                )
        except TimeoutError:
            reason = f"not ready within {_READY_S:g} s"
            await self.drop(record)
        except SandkastenError as exc:
            reason = exc.code
        if not reason:
            return
        # If the kernel killed it for want of memory, that must not explain the end of the run.
        with suppress(SandkastenError):
            handle.counters = await handle.cell.usage()
        if self._events is not None:
            fields = {"sandbox": record.id, "image": record.image, "reason": reason}
            self._events.emit("interpreter.not_held", fields)

    async def drop(self, record: Record) -> None:
        """End what is held in a sandbox that another use than a one-shot claims."""
        handle = self._handles.peek(record.id)
        if handle is None or handle.channel is None:
            return
        try:
            fields = {"exec_id": HELD_PYTHON, "signal": _KILL}
            await handle.channel.call("exec.signal", fields, timeout_s=_READY_S)
        except SandkastenError:
            # There is none, or the sandbox is gone.
            return

    def _program(self) -> bytes:
        if self._prelude is None:
            self._prelude = prelude(self._modules)
        return self._prelude


def prelude(modules: tuple[str, ...]) -> bytes:
    """Return the program that imports these modules and waits."""
    source = resources.files(__package__).joinpath("interpreter_prelude.py").read_bytes()
    return source + f"\n\nhold(__file__, {modules!r})\n".encode()


async def hold_python(channel: Channel, main: str, program: bytes, python_path: str | None) -> str:
    """Start an interpreter for the file `main`, which is not there yet, and wait until it is ready.

    Return why none is held; empty if one is. `python_path` is the PYTHONPATH of the sandbox.
    """
    directory = f"{TMP}/.sandkasten-{secrets.token_hex(6)}"
    await channel.call("fs.write", {"path": f"{directory}/sitecustomize.py"}, data=program)
    path = f"{directory}:{python_path}" if python_path else directory
    fields: dict[str, object] = {
        "exec_id": HELD_PYTHON,
        "argv": [_PYTHON.program, *_PYTHON.once, main],
        "env": {"PYTHONPATH": to_bytes_json(path)},
        "hold": True,
    }
    output = b""
    try:
        async with channel.stream("exec.start", fields) as call:
            async for item in call:
                if isinstance(item, OutputChunk):
                    output += item.data
                    if output == _READY:
                        return ""
                    if len(output) > _REASON_BYTES:
                        break
    finally:
        if output != _READY:
            remove = {"path": directory, "recursive": True, "missing_ok": True}
            with suppress(SandkastenError):
                await channel.call("fs.remove", remove, timeout_s=_REMOVE_S)
    return output[-_REASON_BYTES:].decode(errors="replace").strip().rpartition("\n")[2] or "ended"
