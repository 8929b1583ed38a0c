"""The table of commands with their options. The modules in `commands/` do the work.

Function bodies import what they need when they run, so that `--help` and completion do not wait for
code of other commands.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from sandkasten.cli.commands import sandboxes
from sandkasten.cli.commands.images import image_app
from sandkasten.cli.options import (
    Backend,
    Environment,
    Id,
    Json,
    Timeout,
    pairs,
    sandbox_flags,
    state_of,
)
from sandkasten.cli.sandbox_names import complete
from sandkasten.cli.state import State, go

# Options after the first word belong to the program inside the sandbox.
_PASSES_ON: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}

_STATUSES: Final = (
    "Exit status: the status of the command inside; 124 if it timed out; 125 for an error of "
    "sandkasten itself; 126 or 127 if the program cannot be executed or does not exist; 128 + N if "
    "signal N ended it; 130 for Ctrl-C; 2 for an invalid command line; 1 if doctor finds something "
    "missing. With --json, stdout holds one document: the result or the error.\n\n"
    "Environment: SANDKASTEN_URL and SANDKASTEN_API_KEY (the daemon), SANDKASTEN_TENANT (an "
    "operator acts for this tenant), SANDKASTEN_DATA_DIR, SANDKASTEN_CONFIG; each setting has its "
    "own variable (sandkasten config show)."
)


def build() -> typer.Typer:
    """Build the application."""
    app = typer.Typer(
        name="sandkasten",
        help="Sandboxes that start in milliseconds and keep their state. Commands use a daemon "
        "that serves the data directory; without one they run in this process.",
        epilog=_STATUSES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_before)
    app.command("run", context_settings=_PASSES_ON)(_run)
    app.command("create")(sandboxes.create)
    app.command("exec", context_settings=_PASSES_ON)(_exec)
    app.command("shell")(_shell)
    app.command("cp")(_cp)
    app.command("ls")(sandboxes.ls)
    app.command("ps")(sandboxes.ps)
    app.command("stats")(sandboxes.stats)
    app.command("update")(sandboxes.update)
    app.command("pause")(sandboxes.pause)
    app.command("resume")(sandboxes.resume)
    app.command("rm")(sandboxes.rm)
    app.command("doctor")(_doctor)
    app.command("version")(_version)
    config = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    config.command("show")(_config_show)
    config.callback(help="The settings in force.")(_nothing)
    app.add_typer(config, name="config")
    app.add_typer(image_app(), name="image")
    from sandkasten.cli.commands.workspaces import commands

    app.add_typer(commands(), name="workspace")
    from sandkasten.cli.commands import agents, audit, files, keys, workflows

    app.add_typer(keys.commands(), name="key")
    app.add_typer(audit.commands(), name="audit")
    app.add_typer(files.commands(), name="files")
    app.add_typer(agents.commands(), name="agent")
    app.add_typer(workflows.commands(), name="workflow")
    from sandkasten.cli.commands import mcp, serve, up_down

    serve.add_to(app)
    mcp.add_to(app)
    up_down.add_to(app)
    return app


def _nothing() -> None:
    """The settings in force."""


def _before(
    context: typer.Context,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The data directory.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="B", help="The backend.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="The daemon; also SANDKASTEN_URL. Default: a local one."
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="Its key; better set SANDKASTEN_API_KEY."),
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use no daemon: run in this process.")
    ] = False,
) -> None:
    context.ensure_object(State)
    state = state_of(context)
    state.data_dir, state.backend = data_dir, backend
    state.url, state.api_key, state.embedded = url, api_key, embedded


@sandbox_flags("run")
def _run(
    context: typer.Context,
    options: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|-] [ARGS]...", help="A file of code, then its arguments."),
    ] = None,
    code: Annotated[
        str | None, typer.Option("-c", metavar="CODE", help="The code, instead of a file.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", "-r", metavar="R", help="python, node, bash or sh."),
    ] = None,
    timeout: Timeout = None,
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", metavar="LOCAL[:DEST]", help="Upload a file first; repeatable."
        ),
    ] = [],  # noqa: B006  (typer reads it, nothing writes to it)
    artifact: Annotated[
        list[str],
        typer.Option(
            "--artifact", "-a", metavar="GLOB", help="Download these files afterwards; repeatable."
        ),
    ] = [],  # noqa: B006
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="Directory of artifacts.")
    ] = ".",
    stdin: Annotated[bool, typer.Option("--stdin", help="Pass on standard input.")] = False,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Run code once in a new sandbox. The exit status is that of the code; 124 if it timed out."""
    from sandkasten.cli.commands import run

    job = run.Job(
        code=code,
        words=tuple(words or ()),
        runtime=runtime,
        timeout_s=timeout,
        files=tuple(file),
        artifacts=tuple(artifact),
        out=out,
        stdin=stdin,
        options=options,
    )
    raise SystemExit(run.run(state_of(context, json=json, backend=backend), job))


def _exec(
    context: typer.Context,
    id: Id,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="CMD...",
            help="One word: run by the persistent shell. Several: a program and its arguments.",
        ),
    ],
    timeout: Timeout = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", "-w", metavar="DIR", help="Working directory.")
    ] = None,
    env: Environment = [],  # noqa: B006
    shell: Annotated[
        str, typer.Option("--shell", metavar="NAME", help="Name of the persistent shell.")
    ] = "default",
    json: Json = False,
) -> None:
    """Run a command in a sandbox and stream its output. The exit status is the command's."""
    from sandkasten.cli.commands import exec

    if command[0] == "--":
        command = command[1:]
    if not command:
        raise typer.BadParameter("name a command after --")
    line = exec.CommandLine(
        command[0] if len(command) == 1 else tuple(command),
        {"timeout_seconds": timeout, "cwd": cwd, "env": pairs(env, "--env"), "shell": shell},
    )
    raise SystemExit(go(exec.execute(state_of(context, json=json), id, line)))


@sandbox_flags("shell")
def _shell(
    context: typer.Context,
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="A sandbox; default: a new one that ends with the shell.",
            autocompletion=complete,
        ),
    ] = None,
    options: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Open an interactive terminal in a sandbox."""
    from sandkasten.cli.commands import shell as interactive

    raise SystemExit(go(interactive.shell(state_of(context), id, options)))


def _cp(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path, ID:path, or - (stdin).")],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A path, ID:path, or - (stdout).")
    ],
    json: Json = False,
) -> None:
    """Copy files and directories into a sandbox or out of it."""
    from sandkasten.cli.commands import cp

    go(cp.copy(state_of(context, json=json), source, destination))


def _doctor(
    context: typer.Context,
    measure: Annotated[
        bool,
        typer.Option(help="Create a few sandboxes per tier and measure the time."),
    ] = True,
    json: Json = False,
) -> None:
    """Check what this machine needs for sandboxes. Each missing part has a remedy."""
    from sandkasten.cli.commands import doctor

    raise SystemExit(go(doctor.examine(state_of(context, json=json), measure=measure)))


def _config_show(
    context: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also print where each value comes from.")
    ] = False,
    json: Json = False,
) -> None:
    """Print every setting in force."""
    from sandkasten.cli.commands import listings

    listings.configuration(state_of(context, json=json), origin=origin)


def _version(context: typer.Context, json: Json = False) -> None:
    """Print the version."""
    from sandkasten.cli.commands import listings

    listings.version(state_of(context, json=json))


def command_names() -> list[str]:
    """Return every command, for the test of the documentation."""
    app: Any = build()
    names = [info.name for info in app.registered_commands]
    for group in app.registered_groups:
        names += [f"{group.name} {info.name}" for info in group.typer_instance.registered_commands]
    return sorted(names)
