"""`agent …`: agents in prompt files, run by a daemon or by this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.errors import AgentNotFound, FileTrouble, InvalidRequest, WorkflowNotFound
from sandkasten.model.runs.run_values import Definition
from sandkasten_agents.commands import run_output
from sandkasten_server.cli.command_table import add_group
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.options import Json, Most, state_of
from sandkasten_server.cli.output import tell
from sandkasten_server.cli.state import State, go

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

{run_output.STATUSES}"""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Agents in prompt files.")(_nothing)
    group.command("ls")(_list)
    # The name in older documents and scripts.
    group.command("list", hidden=True)(_list)
    group.command("show")(_show)
    group.command("validate")(_validate)
    group.command("run", epilog=run_output.STATUSES)(_run)
    group.command("runs")(_runs)
    group.command("inspect")(inspect)
    group.command("cancel")(cancel)
    add_group(app, "agent", group)


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
    retain: run_output.Retain = None,
    follow: run_output.Follow = False,
    detach: run_output.Detach = False,
    json: Json = False,
) -> None:
    """Run an agent and print its result."""
    from sandkasten_server.cli.options import pairs

    values: dict[str, Any] = {}
    if variables is not None:
        parsed = run_output.json_of(variables, "--variables")
        if not isinstance(parsed, dict):
            raise UsageError(
                "--variables must be a JSON object", hint="""--variables '{"name": "value"}'"""
            )
        values |= parsed
    values |= pairs(var, "--var")
    text = run_output.stdin() if task == "-" else task
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
            str(problem).startswith(f"#/{name}: must be of type") for problem in problems
        ):
            hint = f"--var gives texts; for other values: --variables '{{\"{name}\": …}}'"
            return type(refused)(refused.message, hint=hint, **refused.details)
    return refused


def _runs(
    context: typer.Context,
    status: run_output.RunStatus = None,
    limit: Most = 20,
    json: Json = False,
) -> None:
    """List runs of agents, the newest first."""
    go(listed_runs(state_of(context, json=json), "agent", status, limit))


def inspect(context: typer.Context, run: run_output.RunId, json: Json = False) -> None:
    """Show a run and its events."""
    go(_inspected(state_of(context, json=json), run))


def cancel(context: typer.Context, run: run_output.RunId, json: Json = False) -> None:
    """Cancel a run and destroy its sandboxes."""
    go(_cancelled(state_of(context, json=json), run))


async def listed(state: State, kind: RunKind) -> None:
    async with run_output.agents(state) as service:
        definitions = await (service.agents() if kind == "agent" else service.workflows())
    run_output.definitions(state, definitions)


async def shown(state: State, kind: RunKind, word: str) -> None:
    name, source = run_output.named(word)
    async with run_output.agents(state) as service:
        transport = await service.transport()
        if source is None:
            definition = await transport.definition(kind, name)
        else:
            definition = await transport.check(kind, source, name)
    run_output.definition(state, definition)


async def checked(state: State, kind: RunKind, words: list[str]) -> int:
    async with run_output.agents(state) as service:
        transport = await service.transport()
        definitions = [await _looked_at(transport, kind, word) for word in words]
    if state.place.url is not None and state.url is None and not state.json:
        tell(
            "note",
            f"checked by the daemon at {state.place.url}, with its settings and its files of "
            "agents and workflows; --embedded uses those of this process",
        )
    return run_output.checked(state, definitions)


async def _looked_at(transport: AgentsPort, kind: RunKind, word: str) -> Definition:
    """Check a definition; a file that cannot be read is invalid too."""
    try:
        name, source = run_output.named(word)
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
        return Definition(kind, run_output.stem(word), path=word, error=problem)


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
    name, source = run_output.named(word)
    check_detach(state, detach)
    async with run_output.agents(state) as service:
        row = await service.run_agent(
            name, task, variables=values, source=source, retain_seconds=retain_s, wait=False
        )
        if detach:
            return run_output.begun(state, row)
        row = await run_output.follow(state, service, row, talk=follow)
    return run_output.finish(state, row)


def check_detach(state: State, detach: bool) -> None:
    if detach and state.place.url is None:
        raise InvalidRequest(
            "--detach requires a daemon",
            hint="start one (sandkasten serve), or leave --detach out",
        )


async def listed_runs(state: State, kind: RunKind, status: str | None, limit: int) -> None:
    async with run_output.agents(state) as service:
        runs = await service.runs(kind=kind, status=status, limit=limit)
    run_output.table(state, runs)


async def _inspected(state: State, run: str) -> None:
    async with run_output.agents(state) as service:
        row = await service.get_run(run)
        transport = await service.transport()
        events = [item async for item in transport.events(run) if hasattr(item, "seq")]
    run_output.inspected(state, row, events)  # type: ignore[arg-type]


async def _cancelled(state: State, run: str) -> None:
    async with run_output.agents(state) as service:
        row = await service.cancel_run(run)
    run_output.begun(state, row)
