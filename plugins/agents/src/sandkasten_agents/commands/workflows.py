"""`workflow …`: workflows of agents, run by a daemon or by this process."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkasten_agents.commands import agents, run_output
from sandkasten_server.cli.command_table import add_group
from sandkasten_server.cli.options import Json, Most, state_of
from sandkasten_server.cli.output import put, put_json
from sandkasten_server.cli.state import State, go

Which = Annotated[
    str, typer.Argument(metavar="WORKFLOW", help="An id in the library, or a .yaml file.")
]

# The first character keeps click from joining the lines.
_EXAMPLES = f"""\b
Examples:
  sandkasten workflow validate ./review.yaml
  sandkasten workflow run review --input '{{"repository": "x"}}' --follow
  sandkasten workflow run ./review.yaml --input @input.json --json
  sandkasten workflow runs --status running
  sandkasten workflow graph review

{run_output.STATUSES}"""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Workflows of agents.")(_nothing)
    group.command("ls")(_list)
    # The name in older documents and scripts.
    group.command("list", hidden=True)(_list)
    group.command("show")(_show)
    group.command("validate")(_validate)
    group.command("graph")(_graph)
    group.command("run", epilog=run_output.STATUSES)(_run)
    group.command("runs")(_runs)
    group.command("inspect")(agents.inspect)
    group.command("resume", epilog=run_output.STATUSES)(_resume)
    group.command("cancel")(agents.cancel)
    add_group(app, "workflow", group)


def _nothing() -> None:
    """Workflows of agents."""


def _list(context: typer.Context, json: Json = False) -> None:
    """List the workflows of the library."""
    go(agents.listed(state_of(context, json=json), "workflow"))


def _show(context: typer.Context, workflow: Which, json: Json = False) -> None:
    """Show the definition of a workflow."""
    go(agents.shown(state_of(context, json=json), "workflow", workflow))


def _validate(
    context: typer.Context,
    workflows: Annotated[list[str], typer.Argument(metavar="WORKFLOW...", help="Ids or files.")],
    json: Json = False,
) -> None:
    """Check workflow files. Exit status 1 if one is invalid."""
    raise SystemExit(go(agents.checked(state_of(context, json=json), "workflow", workflows)))


def _graph(context: typer.Context, workflow: Which, json: Json = False) -> None:
    """Print the steps of a workflow as a Mermaid flowchart."""
    go(_drawn(state_of(context, json=json), workflow))


def _run(
    context: typer.Context,
    workflow: Which,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="Input of the workflow."),
    ] = None,
    retain: run_output.Retain = None,
    follow: run_output.Follow = False,
    detach: run_output.Detach = False,
    json: Json = False,
) -> None:
    """Run a workflow and print its result."""
    value = None if input is None else run_output.json_of(input, "--input")
    state = state_of(context, json=json)
    raise SystemExit(go(_execute(state, workflow, value, retain, follow=follow, detach=detach)))


def _runs(
    context: typer.Context,
    status: run_output.RunStatus = None,
    limit: Most = 20,
    json: Json = False,
) -> None:
    """List runs of workflows, the newest first."""
    go(agents.listed_runs(state_of(context, json=json), "workflow", status, limit))


def _resume(
    context: typer.Context,
    run: run_output.RunId,
    follow: run_output.Follow = False,
    detach: run_output.Detach = False,
    json: Json = False,
) -> None:
    """Resume a run whose process died. A daemon does so by itself."""
    raise SystemExit(go(_resumed(state_of(context, json=json), run, follow=follow, detach=detach)))


async def _execute(
    state: State, word: str, value: Any, retain_s: float | None, *, follow: bool, detach: bool
) -> int:
    name, source = run_output.named(word)
    agents.check_detach(state, detach)
    async with run_output.agents(state) as service:
        row = await service.run_workflow(
            name, value, source=source, retain_seconds=retain_s, wait=False
        )
        if detach:
            return run_output.begun(state, row)
        row = await run_output.follow(state, service, row, talk=follow)
    return run_output.finish(state, row)


async def _resumed(state: State, run: str, *, follow: bool, detach: bool) -> int:
    agents.check_detach(state, detach)
    async with run_output.agents(state) as service:
        row = await service.resume_run(run)
        if detach:
            return run_output.begun(state, row)
        row = await run_output.follow(state, service, row, talk=follow)
    return run_output.finish(state, row)


async def _drawn(state: State, word: str) -> None:
    name, source = run_output.named(word)
    async with run_output.agents(state) as service:
        transport = await service.transport()
        if source is None:
            definition = await transport.definition("workflow", name)
        else:
            definition = await transport.check("workflow", source, name)
    if state.json:
        put_json(definition.fields.get("graph"))
        return
    run_output.complaints(definition)
    put(str(definition.fields.get("mermaid") or "").removesuffix("\n"))
