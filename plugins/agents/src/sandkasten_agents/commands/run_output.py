"""Runs of agents and workflows: follow, show, list and complete them, and map ends to statuses.

Events of a run go to stderr, its result to stdout. Ctrl-C and SIGTERM cancel it and destroy its
sandboxes before the command exits.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from sandkasten.errors import FileTrouble, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import public_run
from sandkasten_server.cli.exit_status import (
    EXIT_INTERRUPTED,
    EXIT_OURS,
    EXIT_SIGNAL_BASE,
    EXIT_TIMED_OUT,
    UsageError,
)
from sandkasten_server.cli.output import age, put, put_json, put_table, say, tell, visible
from sandkasten_server.cli.quantities import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sandkasten.client.agents import AsyncAgents
    from sandkasten.model.runs.run_values import Definition, RunEvent, RunRow
    from sandkasten_server.cli.state import State

EXIT_FAILED: Final = 1
STATUSES: Final = (
    "Exit status: 0 when the run completed, 1 when it failed, 124 when it came to a limit (time, "
    "steps, tokens), 125 when it could not be begun or was lost, 130 when it was cancelled (Ctrl-C "
    "cancels it, and so does SIGTERM, with 143)."
)
_FILES: Final = (".prompt", ".yaml", ".yml", ".json")
_MAX_FILE: Final = 1 << 20
_WIDTH: Final = 160
# Longer than a run takes to destroy its sandboxes.
_CANCEL_S: Final = 45.0

RunId = Annotated[str, typer.Argument(metavar="RUN", help="run_…")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print events on stderr as they happen.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Print the run's id and return; the daemon goes on.")
]
Retain = Annotated[
    float | None,
    typer.Option(
        "--retain",
        metavar="TIME",
        parser=seconds,
        help="Keep its sandboxes after its end for 90 (seconds), 30m, 1h.",
    ),
]
RunStatus = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help="running, completed, failed, cancelled or lost."),
]


def agents(state: State) -> AsyncAgents:
    from sandkasten.client.agents import AsyncAgents

    return AsyncAgents._at(state.place)


def named(word: str) -> tuple[str, str | None]:
    """Return name and content of a definition; the content only for a file."""
    if "/" not in word and not word.endswith(_FILES):
        return word, None
    return stem(word), text_of(Path(word))


def stem(word: str) -> str:
    return Path(word).name.partition(".")[0]


def text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
        if len(data) > _MAX_FILE:
            raise FileTrouble(f"{path} is larger than {_MAX_FILE} bytes", hint="use another path")
        return data.decode()
    except OSError as exc:
        raise FileTrouble(
            f"reading {path} failed: {exc.strerror or exc}", hint="check the path"
        ) from exc
    except UnicodeDecodeError as exc:
        raise FileTrouble(f"{path} is not valid UTF-8", hint="save it as UTF-8") from exc


def stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as exc:
        raise FileTrouble("stdin is not valid UTF-8", hint="send UTF-8") from exc


def json_of(word: str, option: str) -> Any:
    """Parse JSON from the argument, from `@file`, or from stdin for `-`."""
    text = stdin() if word == "-" else word
    if word.startswith("@"):
        text = text_of(Path(word[1:]))
    try:
        return json.loads(text)
    except ValueError as exc:
        raise UsageError(
            f"{option} is not valid JSON: {exc}", hint=f"{option} '{{\"n\": 1}}', or @file.json"
        ) from None


async def follow(state: State, service: AsyncAgents, row: RunRow, *, talk: bool) -> RunRow:
    """Return the ended run; ending this command cancels the run."""
    if not state.json:
        say(f"run {row.id}")
    signalled = _Signalled()
    try:
        with _ended_by_signal(signalled):
            async with service.run_events(row.id) as events:
                async for event in events:
                    if talk:
                        say(line(event))
                    if event.type == "run.started":
                        _warn(event.data.get("warnings"))
                return events.run
    except asyncio.CancelledError:
        say(f"cancelling run {row.id}")
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                ended = await service.cancel_run(row.id)
                if state.json:
                    put_json(described(ended))
        if signalled.terminated:
            raise SystemExit(EXIT_SIGNAL_BASE + signal.SIGTERM) from None
        raise


def _warn(warnings: object, whose: str = "") -> None:
    for warning in warnings if isinstance(warnings, list | tuple) else ():
        tell("warning", whose + str(warning))


@dataclass(slots=True)
class _Signalled:
    terminated: bool = False


@contextmanager
def _ended_by_signal(signalled: _Signalled) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C while the block lasts."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None

    def end() -> None:
        signalled.terminated = True
        task.cancel()

    try:
        loop.add_signal_handler(signal.SIGTERM, end)
    except (RuntimeError, ValueError):
        # Signal handlers can be set only in the main thread.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def finish(state: State, row: RunRow) -> int:
    """Print the result of a run and return the exit status."""
    if state.json:
        put_json(described(row))
    elif row.status == "completed":
        put(_shown(row.output).removesuffix("\n"))
    if not state.json:
        for key, the_id in row.retained.items():
            say(f"retained: {visible(the_id)} ({visible(key)})")
    if row.error is not None and not state.json:
        tell("error", str(row.error.get("message", "")))
        if row.error.get("hint"):
            tell("hint", str(row.error["hint"]))
    return status_of(row)


def status_of(row: RunRow) -> int:
    if row.status == "failed":
        limit = (row.error or {}).get("code") == "RUN_LIMIT_REACHED"
        return EXIT_TIMED_OUT if limit else EXIT_FAILED
    return {"completed": 0, "cancelled": EXIT_INTERRUPTED}.get(row.status, EXIT_OURS)


def begun(state: State, row: RunRow) -> int:
    if state.json:
        put_json(described(row))
    else:
        put(row.id)
    return 0


def described(row: RunRow) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    return {
        **public_run(row),
        "created_at": timestamp(row.created_at),
        "ended_at": None if row.ended_at is None else timestamp(row.ended_at),
    }


def line(event: RunEvent) -> str:
    """Format an event as one line."""
    details = " ".join(
        f"{name}={_brief(value)}" for name, value in event.data.items() if value not in (None, "")
    )
    return visible(f"{event.seq:>4}  {event.type}  {details}")[:_WIDTH]


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.split())


def _shown(output: Any) -> str:
    if output is None:
        return ""
    if not isinstance(output, str):
        return json.dumps(output, indent=2 if sys.stdout.isatty() else None)
    # Output of a model must not control a terminal; a file or a pipe gets it unchanged.
    return "\n".join(map(visible, output.split("\n"))) if sys.stdout.isatty() else output


def table(state: State, rows: Sequence[RunRow]) -> None:
    if state.json:
        put_json([described(row) for row in rows])
        return
    now = time.time()
    put_table(
        ("RUN", "NAME", "STATUS", "AGE", "TOOK", "STEPS", "CALLS", "TOKENS", "PARENT"),
        [
            (
                row.id,
                row.name,
                row.status,
                age(now - row.created_at),
                age((row.ended_at or now) - row.created_at),
                str(row.usage.steps),
                str(row.usage.tool_calls),
                str(row.usage.prompt_tokens + row.usage.completion_tokens),
                row.parent_id or "-",
            )
            for row in rows
        ],
    )


def inspected(state: State, row: RunRow, events: Sequence[RunEvent]) -> None:
    if state.json:
        listed = [{"seq": e.seq, "at": e.at, "type": e.type, "data": dict(e.data)} for e in events]
        put_json({**described(row), "state": dict(row.state), "events": listed})
        return
    shown = {name: value for name, value in described(row).items() if name != "id"}
    put_table(("FIELD", "VALUE"), [(name, _brief(value)) for name, value in shown.items()])
    for event in events:
        put(line(event))


def definitions(state: State, entries: Sequence[Definition]) -> None:
    if state.json:
        put_json([definition_fields(entry) for entry in entries])
        return
    put_table(
        ("NAME", "STATE", "DESCRIPTION", "FILE"),
        [
            (
                entry.name,
                "invalid" if entry.error is not None else "warned" if entry.warnings else "ok",
                str(entry.error.get("message")) if entry.error else entry.description or "-",
                entry.path or "-",
            )
            for entry in entries
        ],
    )


def definition(state: State, entry: Definition) -> None:
    if state.json:
        put_json(definition_fields(entry))
        return
    rows = [("name", entry.name), ("description", entry.description), ("file", entry.path or "-")]
    rows += [(name, _brief(value)) for name, value in entry.fields.items() if name != "graph"]
    put_table(("FIELD", "VALUE"), rows)
    complaints(entry)


def checked(state: State, entries: Sequence[Definition]) -> int:
    """Print the errors of files; return 1 if one is invalid. JSON of several files is a list."""
    if state.json:
        documents = [definition_fields(entry) for entry in entries]
        put_json(documents if len(documents) > 1 else documents[0])
    else:
        for entry in entries:
            complaints(entry, f"{entry.name}: " if len(entries) > 1 else "")
            if entry.error is None:
                put(f"{entry.name}: ok")
    return EXIT_FAILED if any(entry.error is not None for entry in entries) else 0


def complaints(entry: Definition, whose: str = "") -> None:
    _warn(entry.warnings, whose)
    if entry.error is not None:
        tell("error", whose + str(entry.error.get("message", "")))
        issues = (entry.error.get("details") or {}).get("issues") or ()
        if len(issues) > 1:
            for issue in issues:
                say(f"  {visible(str(issue))}")
            return  # Each has its own way out.
        if entry.error.get("hint"):
            tell("hint", str(entry.error["hint"]))


def definition_fields(entry: Definition) -> dict[str, Any]:
    return {
        **entry.fields,
        "kind": entry.kind,
        "name": entry.name,
        "description": entry.description,
        "path": entry.path,
        "warnings": list(entry.warnings),
        "error": None if entry.error is None else dict(entry.error),
    }


# ---- words that the shell completes


async def agent_names(state: State, context: typer.Context) -> Iterable[str]:
    async with agents(state) as service:
        return [agent.name for agent in await service.agents()]


async def workflow_names(state: State, context: typer.Context) -> Iterable[str]:
    async with agents(state) as service:
        return [workflow.name for workflow in await service.workflows()]


async def run_ids(state: State, context: typer.Context) -> Iterable[str]:
    async with agents(state) as service:
        return [run.id for run in await service.runs()]


async def run_statuses(state: State, context: typer.Context) -> Iterable[str]:
    from sandkasten.model.runs import run_values

    return get_args(run_values.RunStatus)
