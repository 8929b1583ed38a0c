"""`agent …`: agents in prompt files, run by a daemon or by this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.cli.commands import runs
from sandkasten.cli.exit_status import UsageError
from sandkasten.cli.options import Detach, Follow, Json, Most, Retain, RunId, RunStatus, state_of
from sandkasten.cli.output import tell
from sandkasten.cli.state import State, go
from sandkasten.errors import AgentNotFound, FileTrouble, InvalidRequest, WorkflowNotFound
from sandkasten.model.runs.run_values import Definition

if TYPE_CHECKING:
    from sandkasten.model.runs.run_values import RunKind
    from sandkasten.ports import Agents as AgentsPort

Which = Annotated[
    str, typer.Argument(metavar="AGENT", help="A name in the library, or a .prompt file.")
]
# The first character keeps click from joining the lines.
_EXAMPLES = f"""\b
Examples:
  sandkasten agent run json-analyst "which service is slowest?" --follow
  sandkasten agent run ./triage.prompt - --var severity=high < report.txt
  sandkasten agent run log-analyzer --variables @input.json --json

{runs.STATUSES}"""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Agents in prompt files.")(_nothing)
    group.command("ls")(_list)
    # The name in older documents and scripts.
    group.command("list", hidden=True)(_list)
    group.command("show")(_show)
    group.command("validate")(_validate)
    group.command("run", epilog=runs.STATUSES)(_run)
    group.command("runs")(_runs)
    group.command("inspect")(inspect)
    group.command("cancel")(cancel)
    return group


def _nothing() -> None:
    """Agents in prompt files."""


def _list(context: typer.Context, json: Json = False) -> None:
    """List the agents of the library."""
    go(listed(state_of(context, json=json), "agent"))


def _show(context: typer.Context, agent: Which, json: Json = False) -> None:
    """Show the definition of an agent."""
    go(shown(state_of(context, json=json), "agent", agent))


def _validate(
    context: typer.Context,
    agents: Annotated[list[str], typer.Argument(metavar="AGENT...", help="Names or files.")],
    json: Json = False,
) -> None:
    """Check prompt files. Exit status 1 if one is invalid."""
    raise SystemExit(go(checked(state_of(context, json=json), "agent", agents)))


def _run(
    context: typer.Context,
    agent: Which,
    task: Annotated[
        str, typer.Argument(metavar="[TASK|-]", help="The task; - reads it from stdin.")
    ] = "",
    var: Annotated[
        list[str],
        typer.Option("--var", metavar="K=V", help="A variable of its template; repeatable."),
    ] = [],  # noqa: B006
    variables: Annotated[
        str | None,
        typer.Option(
            "--variables", metavar="JSON|@FILE", help="Variables of its template, as JSON."
        ),
    ] = None,
    retain: Retain = None,
    follow: Follow = False,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Run an agent and print its result."""
    from sandkasten.cli.options import pairs

    values: dict[str, Any] = {}
    if variables is not None:
        given = runs.json_of(variables, "--variables")
        if not isinstance(given, dict):
            raise UsageError(
                "--variables must be a JSON object", hint="""--variables '{"name": "value"}'"""
            )
        values |= given
    values |= pairs(var, "--var")
    text = runs.stdin() if task == "-" else task
    state = state_of(context, json=json)
    try:
        status = go(_execute(state, agent, text, values, retain, follow=follow, detach=detach))
    except InvalidRequest as exc:
        raise _as_values(exc, pairs(var, "--var")) from exc
    raise SystemExit(status)


def _as_values(refused: InvalidRequest, texts: dict[str, str]) -> InvalidRequest:
    """Return the error, with a hint for a variable that should have been a number."""
    problems = refused.details.get("problems")
    for name in texts:
        if isinstance(problems, list) and any(
            str(one).startswith(f"#/{name}: must be of type") for one in problems
        ):
            hint = f"--var gives texts; for other values: --variables '{{\"{name}\": …}}'"
            return type(refused)(refused.message, hint=hint, **refused.details)
    return refused


def _runs(
    context: typer.Context, status: RunStatus = None, limit: Most = 20, json: Json = False
) -> None:
    """List runs of agents, the newest first."""
    go(listed_runs(state_of(context, json=json), "agent", status, limit))


def inspect(context: typer.Context, run: RunId, json: Json = False) -> None:
    """Show a run and its events."""
    go(_inspected(state_of(context, json=json), run))


def cancel(context: typer.Context, run: RunId, json: Json = False) -> None:
    """Cancel a run and destroy its sandboxes."""
    go(_cancelled(state_of(context, json=json), run))


async def listed(state: State, kind: RunKind) -> None:
    async with runs.agents(state) as service:
        found = await (service.agents() if kind == "agent" else service.workflows())
    runs.definitions(state, found)


async def shown(state: State, kind: RunKind, word: str) -> None:
    name, source = runs.named(word)
    async with runs.agents(state) as service:
        transport = await service.transport()
        if source is None:
            found = await transport.definition(kind, name)
        else:
            found = await transport.check(kind, source, name)
    runs.definition(state, found)


async def checked(state: State, kind: RunKind, words: list[str]) -> int:
    async with runs.agents(state) as service:
        transport = await service.transport()
        found = [await _looked_at(transport, kind, word) for word in words]
    if state.place.url is not None and state.url is None and not state.json:
        tell(
            "note",
            f"checked by the daemon at {state.place.url}, with its settings and its files of "
            "agents and workflows; --embedded uses those of this process",
        )
    return runs.checked(state, found)


async def _looked_at(transport: AgentsPort, kind: RunKind, word: str) -> Definition:
    """Check a definition; a file that cannot be read is invalid too."""
    try:
        name, source = runs.named(word)
        if source is None:
            source = (await transport.definition(kind, name)).source
        return await transport.check(kind, source, name)
    except (FileTrouble, AgentNotFound, WorkflowNotFound) as exc:
        problem = {
            "code": exc.code,
            "message": exc.message,
            "hint": exc.hint,
            "details": exc.details,
        }
        return Definition(kind, runs.stem(word), path=word, error=problem)


async def _execute(
    state: State,
    word: str,
    task: str,
    values: dict[str, Any],
    retain_s: float | None,
    *,
    follow: bool,
    detach: bool,
) -> int:
    name, source = runs.named(word)
    check_detach(state, detach)
    async with runs.agents(state) as service:
        row = await service.run_agent(
            name, task, variables=values, source=source, retain_seconds=retain_s, wait=False
        )
        if detach:
            return runs.begun(state, row)
        row = await runs.follow(state, service, row, talk=follow)
    return runs.finish(state, row)


def check_detach(state: State, detach: bool) -> None:
    if detach and state.place.url is None:
        raise InvalidRequest(
            "--detach requires a daemon",
            hint="start one (sandkasten serve), or leave --detach out",
        )


async def listed_runs(state: State, kind: RunKind, status: str | None, limit: int) -> None:
    async with runs.agents(state) as service:
        found = await service.runs(kind=kind, status=status, limit=limit)
    runs.table(state, found)


async def _inspected(state: State, run: str) -> None:
    async with runs.agents(state) as service:
        row = await service.get_run(run)
        transport = await service.transport()
        events = [item async for item in transport.events(run) if hasattr(item, "seq")]
    runs.inspected(state, row, events)  # type: ignore[arg-type]


async def _cancelled(state: State, run: str) -> None:
    async with runs.agents(state) as service:
        row = await service.cancel_run(run)
    runs.begun(state, row)
