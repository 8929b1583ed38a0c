"""`replay`: a session again, command by command, with output and times."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.options import state_of
from sandkasten_server.cli.output import paragraph, put, put_json, say, visible
from sandkasten_server.cli.sandbox_names import resolve_among
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from sandkasten.client.http.replay import SessionReplay

# A session that waited for an hour should not make its reader wait.
_LONGEST_PAUSE_S = 5.0

# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten replay sbx_0123456789abcdef --no-wait
  sandkasten replay sbx_0123456789abcdef --speed 4
  sandkasten replay sbx_0123456789abcdef --cast exe_0123456789abcdef -o terminal.cast

Output is there as far as the sandbox lives and keeps it, or recording.enabled was on."""


def add_to(app: typer.Typer) -> None:
    app.command("replay", epilog=_EXAMPLES)(_replay)


def _replay(
    context: typer.Context,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of the sandbox, also an ended one.",
        ),
    ],
    speed: Annotated[
        float, typer.Option("--speed", metavar="N", min=0.01, help="N times as fast.")
    ] = 1.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print everything at once.")] = False,
    cast: Annotated[
        str | None,
        typer.Option("--cast", metavar="EXEC", help="Write this recording as asciicast v2."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="For --cast; else stdout.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not remove what a terminal might act upon.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show a session again, commands and code, with output and times."""
    state = state_of(context, json=json)
    if cast is not None:
        go(_cast(state, id, cast, output))
    else:
        go(_show(state, id, _Pace(None if no_wait or json else speed), raw=raw))


class _Pace:
    """Wait as long as it took, divided by the speed; None does not wait."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed

    async def wait(self, seconds: float) -> None:
        if self._speed is not None and seconds > 0:
            await asyncio.sleep(min(seconds / self._speed, _LONGEST_PAUSE_S))


async def _sandboxes(state: State) -> list[str]:
    from sandkasten.client.http.replay import ended_sandboxes
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    live = [info.id for info in await transport.list(all=True)]
    return [*live, *await ended_sandboxes(state.place)]


async def _cast(state: State, the_id: str, exec_id: str, path: Path | None) -> None:
    from sandkasten.client.http.replay import replay_of

    the_id = await resolve_among(the_id, partial(_sandboxes, state))
    async with replay_of(state.place, the_id) as session:
        recording = await session.recording(exec_id)
    if path is None:
        sys.stdout.buffer.write(recording)
        sys.stdout.buffer.flush()
        return
    try:
        await asyncio.to_thread(path.write_bytes, recording)
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written: {exc.strerror}", hint="name another file"
        ) from exc


async def _show(state: State, the_id: str, pace: _Pace, *, raw: bool) -> None:
    from sandkasten.client.http.replay import replay_of

    the_id = await resolve_among(the_id, partial(_sandboxes, state))
    async with replay_of(state.place, the_id) as session:
        commands, recorded = await session.commands(), await session.recordings()
        entries = []
        before: float | None = None
        for command in commands:
            began = float(command.get("started_at") or 0)
            if before is not None:
                await pace.wait(began - before)
            before = began + float(command.get("duration_ms") or 0) / 1000
            events = await _events(session, command, recorded)
            if state.json:
                text = None if events is None else "".join(part for _, part in events)
                entries.append({**command, "output": text})
            else:
                await _play(command, events, pace, raw=raw)
    if state.json:
        put_json(entries)


async def _events(
    session: SessionReplay, command: dict[str, Any], recorded: set[str]
) -> list[tuple[float, str]] | None:
    """Return pieces of output with their times; None if no output is kept."""
    exec_id = str(command.get("exec_id"))
    if exec_id in recorded:
        return _parsed(await session.recording(exec_id))
    if not command.get("output_kept"):
        return None
    data = await session.output(exec_id)
    return None if data is None else [(0.0, data.decode("utf-8", "replace"))]


def _parsed(cast: bytes) -> list[tuple[float, str]]:
    events = []
    for line in cast.splitlines()[1:]:
        try:
            at, code, text = json_module.loads(line)
        except ValueError:
            continue  # The daemon has written only a part of this line.
        if code == "o":
            events.append((float(at), str(text)))
    return events


async def _play(
    command: dict[str, Any], events: list[tuple[float, str]] | None, pace: _Pace, *, raw: bool
) -> None:
    from sandkasten.model.commands.terminal_text import HarmlessText
    from sandkasten_server.cli.commands.listings import timestamp

    began = float(command.get("started_at") or 0)
    put(f"[{timestamp(began)}] {_asked(command)}")
    harmless, last, text = HarmlessText(), 0.0, ""
    for at, part in events or ():
        await pace.wait(at - last)
        last, text = at, part if raw else harmless(part)
        sys.stdout.write(text)
        sys.stdout.flush()
    if events and not raw and sys.stdout.isatty():
        sys.stdout.write("\x1b[0m")
    if text and not text.endswith("\n"):
        put("")
    if events is None and (command.get("stdout_bytes") or command.get("stderr_bytes")):
        say("(its output was not kept)")
    code = command.get("exit_code")
    name = command.get("error_name")
    ended = f"exit {code}" if code is not None else str(command.get("status"))
    ended += f" {visible(str(name))}" if name else ""
    refused = (command.get("network") or {}).get("refused") or ()
    ended += f", {command.get('duration_ms') or 0} ms"
    if refused:
        ended += "; refused " + " ".join(
            visible(f"{refusal['host']}:{refusal['port']}") for refusal in refused
        )
    put(f"[{ended}]")


def _asked(command: dict[str, Any]) -> str:
    """Return a prompt and what was run, in its lines, with everything else escaped."""
    text = str(command.get("command") or "(unknown)")
    kind = command.get("kind")
    if kind == "kernel":
        return visible(text)
    shown = paragraph(text)
    if command.get("command_sha256"):
        size, digest = command.get("command_bytes"), command.get("command_sha256")
        shown += f"\n  … ({size} bytes in all, SHA-256 {visible(str(digest))})"
    if kind != "cell":
        return f"$ {shown}"
    separator = "\n  " if "\n" in shown else " "
    return f"{visible(str(command.get('language')))}>{separator}{shown}"
