"""E2B's process service: commands and terminals, by the process id inside the sandbox.

A process is a command of the engine that runs in the background, so it outlives the stream that
started it and the daemon. Its id is looked up among the running commands of the sandbox. A stream
that connects later gets the output from then on, as with E2B.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import signal as signals
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import (
    CommandNotFound,
    CommandTimeout,
    ExecNotFound,
    InvalidRequest,
    SandboxLost,
)
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult, Pty
from sandkasten.model.commands.kept_output import gap_marker
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.cell_spec import E2B_HOME
from sandkasten.model.sandbox.limits import FREE_KEPT_BYTES
from sandkasten_e2b.connect_codec import STREAM, Envelopes, end_of_stream, envelope
from sandkasten_e2b.e2b_messages import (
    ProcessInput,
    Selected,
    Selector,
    SendInput,
    SendSignal,
    Start,
    StreamInput,
    Update,
)
from sandkasten_e2b.envd_access import follow, streamed_request, timeout_s
from sandkasten_e2b.sandbox_places import Spelling, real_path, user_in
from sandkasten_server.api.response.json_response import answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten_e2b.envd_access import EnvdAccess
    from sandkasten_e2b.sandbox_accounts import SandboxAccount
    from sandkasten_server.api.request.http_call import Call

ALIVE: Final[Mapping[str, object]] = {"event": {"keepalive": {}}}
_BASH: Final = "/bin/bash"
_SH: Final = "/bin/sh"
_SIGNALS: Final = {
    "SIGNAL_SIGTERM": signals.SIGTERM,
    "SIGNAL_SIGKILL": signals.SIGKILL,
    15: signals.SIGTERM,
    9: signals.SIGKILL,
}
# Output that is kept of each stream for a client that reads slowly. E2B slows the command instead.
# No setting of `policy.max` refuses this size.
_KEPT_BYTES: Final = FREE_KEPT_BYTES
# Reasons of an end that the signal does not show.
_SHOWN_REASONS: Final = frozenset({"OOM", "PIDS", "QUOTA", "SECCOMP"})
# Maximum number of tags of a sandbox. Each drops its own oldest, so that the tags of one tenant do
# not displace those of another.
_MAX_TAGS: Final = 64
_MAX_TAGGED_SANDBOXES: Final = 2048
# Bytes of streamed input that are parsed in a row: 600 of the smallest messages.
_SLICE: Final = 4 * 1024


class ProcessRoutes:
    def __init__(self, access: EnvdAccess) -> None:
        self._access = access
        self._tags: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        """Exec ids by sandbox and tag. They end with the daemon; process ids stay valid."""

    async def listed(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        await call.raw(call.server.rules.max_json_bytes)
        running = {command.exec_id: command for command in await _running(call, the_id)}
        tags = {exec_id: tag for tag, exec_id in self._tags.get(the_id, {}).items()}
        processes = []
        for process in await call.engine.processes(the_id):
            command = running.get(process.exec_id or "")
            if command is None or command.pid != process.pid:
                continue
            words = process.cmdline or (process.name,)
            config: dict[str, object] = {"cmd": words[0], "args": list(words[1:]), "envs": {}}
            entry: dict[str, object] = {"config": config, "pid": process.pid}
            if command.exec_id in tags:
                entry["tag"] = tags[command.exec_id]
            processes.append(entry)
        return answer({"processes": processes})

    async def start(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await streamed_request(call, Start)
        limit_s = timeout_s(call)
        user = user_in(call.connection.headers.get("authorization"))
        account = await self._access.accounts.of(call.engine, the_id)
        began = await _start(call, the_id, message, limit_s, account, user)
        if message.tag:
            self._remember(the_id, message.tag, began.exec_id)
        return follow(call, _events(call, the_id, began, 0), ALIVE)

    async def connect(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await streamed_request(call, Selected)
        command = await self._find(call, the_id, message.process)
        return follow(call, _events(call, the_id, command, command.last_seq), ALIVE)

    async def send_input(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(SendInput)
        command = await self._find(call, the_id, message.process)
        data = _input(message.input)
        # The program may read its stdin late; stop waiting if the client disconnects.
        await call.while_there(call.engine.exec_stdin(the_id, command.exec_id, data))
        return answer({})

    async def stream_input(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        reader = Envelopes(call.server.rules.max_json_bytes)
        command: ExecResult | None = None
        async for piece in _slices(call.pieces(call.server.rules.max_upload_bytes)):
            for raw in reader.feed(piece):
                message = await call.parsed(StreamInput, raw)
                if message.start is not None:
                    command = await self._find(call, the_id, message.start.process)
                elif message.data is not None:
                    if command is None:
                        raise InvalidRequest(
                            "the first message of the stream must name the process",
                            hint='{"start": {"process": {"pid": 1}}}',
                        )
                    data = _input(message.data.input)
                    await call.while_there(call.engine.exec_stdin(the_id, command.exec_id, data))
        reader.finish()
        return Response(envelope({}) + end_of_stream(), media_type=STREAM)

    async def send_signal(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(SendSignal)
        number = _SIGNALS.get(message.signal)
        if number is None:
            raise InvalidRequest(
                "this signal cannot be sent",
                hint="use SIGNAL_SIGTERM or SIGNAL_SIGKILL",
                field="signal",
            )
        command = await self._find(call, the_id, message.process)
        await call.engine.exec_signal(the_id, command.exec_id, int(number))
        return answer({})

    async def close_stdin(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        command = await self._find(call, the_id, (await call.body(Selected)).process)
        await call.engine.exec_stdin(the_id, command.exec_id, b"", close=True)
        return answer({})

    async def update(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(Update)
        command = await self._find(call, the_id, message.process)
        if message.pty is not None:
            size = message.pty.size
            await call.engine.terminals.resize(the_id, command.exec_id, size.rows, size.cols)
        return answer({})

    async def _find(self, call: Call, the_id: SandboxId, selector: Selector) -> ExecResult:
        """Return the running command that a selector names; ExecNotFound if there is none."""
        tags = self._tags.get(the_id)
        tagged = None if tags is None else tags.get(selector.tag or "")
        for command in await _running(call, the_id):
            if command.exec_id == tagged or (selector.pid and command.pid == selector.pid):
                return command
        shown = f"with tag {selector.tag[:80]!r}" if selector.tag else f"with pid {selector.pid}"
        raise ExecNotFound(f"process {shown} not found", hint="list the running processes")

    def _remember(self, the_id: SandboxId, tag: str, exec_id: str) -> None:
        tags = self._tags.setdefault(the_id, OrderedDict())
        tags[tag] = exec_id
        tags.move_to_end(tag)
        self._tags.move_to_end(the_id)
        if len(tags) > _MAX_TAGS:
            tags.popitem(last=False)
        if len(self._tags) > _MAX_TAGGED_SANDBOXES:
            self._tags.popitem(last=False)


async def _slices(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over small pieces; other requests run between two of them."""
    async for piece in pieces:
        for at in range(0, len(piece), _SLICE):
            await asyncio.sleep(0)
            yield piece[at : at + _SLICE]


async def _running(call: Call, the_id: SandboxId) -> list[ExecResult]:
    commands = await call.engine.commands(the_id)
    return [command for command in commands if command.status == "running"]


async def _start(
    call: Call,
    the_id: SandboxId,
    message: Start,
    limit_s: float | None,
    account: SandboxAccount,
    user: str,
) -> ExecResult:
    config = message.process
    pty = message.pty
    request = ExecRequest(
        command=(config.cmd, *config.args),
        cwd=account.directory(config.cwd),
        env={
            **account.environment(user),
            "PWD": _directory_name(config.cwd or E2B_HOME),
            **config.envs,
        },
        user=account.user(user),
        timeout_seconds=limit_s,
        max_output_bytes=_KEPT_BYTES,
        pty=None if pty is None else Pty(pty.size.rows, pty.size.cols),
        # Older SDKs do not send this field and expect an open stdin.
        keep_stdin_open=message.stdin is not False or pty is not None,
    )
    try:
        return await call.engine.exec_start(the_id, request)
    except CommandNotFound:
        if config.cmd != _BASH:
            raise
    # The SDKs name bash for every command, and a small image may have only sh.
    return await call.engine.exec_start(the_id, replace(request, command=(_SH, *config.args)))


def _directory_name(cwd: str) -> str:
    """Return the name under which a shell shows the directory that it starts in."""
    return Spelling.of(cwd).shown(sandbox_path(real_path(cwd)))


async def _events(
    call: Call, the_id: SandboxId, began: ExecResult, since_seq: int
) -> AsyncIterator[Mapping[str, object]]:
    yield {"event": {"start": {"pid": began.pid}}}
    items = call.engine.exec_output(the_id, began.exec_id, since_seq=since_seq, follow=True)
    async with aclosing(items) as source:  # type: ignore[type-var]
        async for item in source:
            if isinstance(item, ExecResult):
                yield _end(item)
                return
            for data in _data(item):
                yield {"event": {"data": {item.source: base64.b64encode(data).decode()}}}
    raise SandboxLost("the sandbox ended before its process", hint="create a new one")


def _data(chunk: Chunk) -> list[bytes]:
    """Return the bytes of a chunk, preceded by a line about bytes that were not kept."""
    parts = [gap_marker(chunk.gap_bytes)] if chunk.gap_bytes else []
    return [*parts, chunk.data] if chunk.data else parts


def _end(result: ExecResult) -> Mapping[str, object]:
    if result.timed_out:
        raise CommandTimeout(
            f"the process ran longer than its timeout ({result.duration_ms} ms)",
            hint="pass a larger timeout, or 0 for none",
        )
    if result.exit_code is not None:
        status = f"exit status {result.exit_code}"
        ended: dict[str, object] = {"exitCode": result.exit_code, "exited": True, "status": status}
        if result.exit_code:
            ended["error"] = status
        return {"event": {"end": ended}}
    status = "lost" if result.signal is None else f"signal: {_signal_name(result.signal)}"
    if result.why is not None and result.why.code in _SHOWN_REASONS:
        status += f" ({result.why.message})"
    return {"event": {"end": {"exitCode": -1, "exited": False, "status": status, "error": status}}}


def _signal_name(number: int) -> str:
    name = signals.strsignal(number)
    return str(number) if name is None else name.lower()


def _input(message: ProcessInput) -> bytes:
    text = message.stdin if message.stdin is not None else message.pty
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            "input must be base64", hint="encode the bytes", field="input"
        ) from exc
