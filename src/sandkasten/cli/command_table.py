"""Every command with its options, as typer reads them; what a command does lies in its module.

The bodies import what they need when they run: `--help`, completion and `run` must not wait
for code that only another command uses.
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

# Options after the first word belong to what runs inside, not to us.
_PASSES_ON: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}

_STATUSES: Final = (
    "Exit status: that of what ran inside; 124 when its time ran out; 125 for an error of ours; "
    "126 or 127 when the program cannot be executed or is not there; 128 + N when signal N ended "
    "it; 130 for Ctrl-C; 2 for a command line that makes no sense; 1 when doctor finds something "
    "missing. With --json, stdout holds one document: the answer, or the error.\n\n"
    "Environment: SANDKASTEN_URL and SANDKASTEN_API_KEY (which daemon), SANDKASTEN_TENANT (whom an "
    "operator acts for), SANDKASTEN_DATA_DIR, SANDKASTEN_CONFIG; each setting has one of its own "
    "(sandkasten config show)."
)


def build() -> typer.Typer:
    """The whole application."""
    app = typer.Typer(
        name="sandkasten",
        help="Sandboxes that start in milliseconds, remember, and cannot be wedged. A daemon that "
        "serves the data directory does the work; without one, this process does.",
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
        str | None, typer.Option("--data-dir", metavar="DIR", help="Where sandboxes are kept.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="B", help="What isolates them.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="The daemon to ask; also SANDKASTEN_URL. Else one here."
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="Its key; better in SANDKASTEN_API_KEY."),
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Ask no daemon: do it in this process.")
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
        typer.Argument(metavar="[FILE|-] [ARGS]...", help="The code's file, then its arguments."),
    ] = None,
    code: Annotated[
        str | None, typer.Option("-c", metavar="CODE", help="The code itself, instead of a file.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", "-r", metavar="R", help="python, node, bash or sh."),
    ] = None,
    timeout: Timeout = None,
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", metavar="LOCAL[:DEST]", help="Put a file there first; repeatable."
        ),
    ] = [],  # noqa: B006  (typer reads it, nothing writes to it)
    artifact: Annotated[
        list[str],
        typer.Option(
            "--artifact", "-a", metavar="GLOB", help="Bring these files back; repeatable."
        ),
    ] = [],  # noqa: B006
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="Where artifacts go.")
    ] = ".",
    stdin: Annotated[bool, typer.Option("--stdin", help="Give it our standard input.")] = False,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Run code once in a sandbox of its own. The exit status is the code's; 124: out of time."""
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
            help="One word: given to the persistent shell. Several: a program and its arguments.",
        ),
    ],
    timeout: Timeout = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", "-w", metavar="DIR", help="The directory inside.")
    ] = None,
    env: Environment = [],  # noqa: B006
    shell: Annotated[
        str, typer.Option("--shell", metavar="NAME", help="Which persistent shell.")
    ] = "default",
    json: Json = False,
) -> None:
    """Run a command in a sandbox. Output as it comes, exit status of the command."""
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
            help="A sandbox; without one, a new one for as long as the shell.",
            autocompletion=complete,
        ),
    ] = None,
    options: dict[str, Any] = {},  # noqa: B006
) -> None:
    """An interactive terminal in a sandbox."""
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
        typer.Option(help="Make a few sandboxes of each kind and say how long that takes."),
    ] = True,
    json: Json = False,
) -> None:
    """Say what sandboxes need here. Whether it is there, and what to do where it is not."""
    from sandkasten.cli.commands import doctor

    raise SystemExit(go(doctor.examine(state_of(context, json=json), measure=measure)))


def _config_show(
    context: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also say where each comes from.")
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
    """Every command a user can type, for the documentation's own test."""
    app: Any = build()
    names = [info.name for info in app.registered_commands]
    for group in app.registered_groups:
        names += [f"{group.name} {info.name}" for info in group.typer_instance.registered_commands]
    return sorted(names)
