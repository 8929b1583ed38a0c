"""The table of commands with their options. The modules in `commands/` do the work.

A command is described to the parser only if it is asked for, and function bodies import what they
need when they run. Plugins add commands (`command_plugins.py`); they are looked for only if the
core has no command of the name, or a group to which they may add some.
"""

from __future__ import annotations

import functools
import importlib
import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandkasten.errors import UnsupportedByBackend
from sandkasten_server.cli.begun_command import begun_command
from sandkasten_server.cli.command_plugins import add as add_command
from sandkasten_server.cli.command_plugins import command_plugins, not_installed
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.options import (
    Backend,
    Environment,
    Id,
    Json,
    Timeout,
    User,
    pairs,
    sandbox_flags,
    state_of,
)
from sandkasten_server.cli.state import State, go
from sandkasten_server.cli.usage_errors import no_command, no_option, option_names, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Add = Callable[[typer.Typer], None]

# Options after the first word belong to the program inside the sandbox.
_PASSES_ON: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}

_STATUSES: Final = (
    "Exit status: the status of the command inside; 124 if it timed out; 125 for an error of "
    "sandkasten itself; 126 or 127 if the program cannot be executed or does not exist; 128 + N if "
    "signal N ended it; 130 for Ctrl-C; 2 for an invalid command line or option value; 1 if doctor "
    "finds something missing. With --json, stdout holds one document: the result or the "
    "error.\n\n"
    "Environment: SANDKASTEN_URL and SANDKASTEN_API_KEY (the daemon), SANDKASTEN_TENANT (an "
    "operator acts for this tenant), SANDKASTEN_DATA_DIR, SANDKASTEN_CONFIG; each setting has its "
    "own variable (sandkasten config show)."
)


class _Group(typer.core.TyperGroup):
    """A group of commands that names the nearest command for an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            group = ctx.command_path.removeprefix("sandkasten").strip()
            missing = not_installed(group, args[0])
            if missing is not None:
                state_of(ctx).json = "--json" in args
                raise missing
            raise no_command(group, args[0], self.commands, command_names())
        return super().resolve_command(ctx, args)


class _Sections(_Group):
    """The group of all commands, listed by section: a flat list of forty names is not read."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        words = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as exc:
            command = next((word for word in words if word in _table()), None)
            error = translated(exc, command, _BEFORE)
            if error is None:
                raise
            raise error from exc

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as exc:
            error = translated(exc, ctx.invoked_subcommand, _BEFORE)
            if error is None:
                raise
            raise error from exc

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, _table()), default=0)
        for title, section in _sections().items():
            commands = [(name, self.get_command(ctx, name)) for name in section]
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width * 2))
                for name, command in commands
                if command is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def build(only: str | None = None) -> typer.Typer:
    """Build the application; with the name of a command, only that command.

    To describe all commands to the parser takes longer than to run most of them.
    """
    app = typer.Typer(
        name="sandkasten",
        cls=_Sections,
        help="Sandboxes that start in milliseconds and keep their state. Commands use a daemon "
        "that serves the data directory; without one they run in this process.",
        epilog=_STATUSES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_before)
    # Two commands of one module have the same entry.
    wanted = dict.fromkeys(_wanted(only).values())
    for add in wanted:
        # A plugin that cannot be imported stops only its own command.
        with suppress(UnsupportedByBackend) if len(wanted) > 1 else nullcontext():
            add(app)
    for group in app.registered_groups:
        if group.name is not None and group.typer_instance is not None:
            _add_below(group.name, group.typer_instance)
    if "_SANDKASTEN_COMPLETE" in os.environ:
        from sandkasten_server.cli.completions import add_to

        add_to(app)
    return app


def _wanted(only: str | None) -> Mapping[str, Add]:
    if only is None:
        return _table()
    if only in _CORE:
        return {only: _CORE[only]}
    table = _table()
    return {only: table[only]} if only in table else table


def _add_below(name: str, group: typer.Typer) -> None:
    """Add the commands of plugins to a group of the core, which keeps its own of that name."""
    below = command_plugins().below(name)
    own = {command.name for command in group.registered_commands} if below else set()
    for target in dict.fromkeys(entry.add for word, entry in below.items() if word not in own):
        with suppress(UnsupportedByBackend):
            add_command(target, group)


def command_in(words: Sequence[str]) -> str | None:
    """Return the command of a command line; None if the options before it are not clear."""
    rest = iter(words)
    for word in rest:
        if word == "--version":
            return "version"
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
        elif word not in _SWITCHES and word.partition("=")[0] not in _WITH_VALUE:
            return None
    return None


def _own(name: str, **settings: Any) -> Add:
    """Return what adds a command of this module."""
    return lambda app: app.command(name, **settings)(globals()[f"_{name}"])


def _of_one(name: str) -> Add:
    """Return what adds a command of one sandbox."""

    def add(app: typer.Typer) -> None:
        from sandkasten_server.cli.commands import sandboxes

        app.command(name)(getattr(sandboxes, name))

    return add


def add_group(app: typer.Typer, name: str, commands: typer.Typer) -> None:
    """Add a group of commands, which names the nearest one for an unknown one."""
    app.add_typer(commands, name=name, cls=_Group)


def _group(name: str, module: str) -> Add:
    """Return what adds a group of commands from its module."""

    def add(app: typer.Typer) -> None:
        loaded = importlib.import_module(f"sandkasten_server.cli.commands.{module}")
        add_group(app, name, loaded.commands())

    return add


def _module(module: str, *names: str) -> dict[str, Add]:
    """Return the entries of commands that a module adds together."""
    return dict.fromkeys(names, _adder(module))


@functools.cache
def _adder(module: str) -> Add:
    """Return what adds the commands of a module: one value, so that no section adds them twice."""
    return lambda app: importlib.import_module(f"sandkasten_server.cli.commands.{module}").add_to(
        app
    )


def _config(app: typer.Typer) -> None:
    config = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    config.command("show")(_config_show)
    config.callback(help="The settings in force.")(_nothing)
    add_group(app, "config", config)


_SECTIONS: Final[Mapping[str, Mapping[str, Add]]] = {
    "Sandboxes": {
        "run": _own("run", context_settings=_PASSES_ON),
        "create": _of_one("create"),
        "exec": _own("exec", context_settings=_PASSES_ON),
        **_module("code", "code"),
        "shell": _own("shell"),
        "cp": _own("cp"),
        "logs": _own("logs"),
        "kill": _own("kill"),
        **{
            name: _of_one(name)
            for name in (
                "ls",
                "ps",
                "stats",
                "top",
                "inspect",
                "update",
                "pause",
                "resume",
                "fork",
                "rm",
            )  # fmt: skip
        },
        **_module("access.replay", "replay"),
    },
    "Network": {
        "net": _group("net", "network"),
        "secret": _group("secret", "access.secrets"),
        **_module("previews", "url", "forward"),
    },
    "Images and files": {
        "image": _group("image", "images"),
        "workspace": _group("workspace", "workspaces"),
        "snapshot": _group("snapshot", "snapshots"),
        "files": _group("files", "files"),
    },
    # Filled by plugins.
    "Agents": {},
    "Daemon and machine": {
        **_module("serve", "init", "serve"),
        "config": _config,
        "doctor": _own("doctor"),
        "key": _group("key", "access.keys"),
        "audit": _group("audit", "access.audit"),
        **_module("previews", "ca"),
        "version": _own("version"),
    },
}
_CORE: Final[Mapping[str, Add]] = {
    name: add for section in _SECTIONS.values() for name, add in section.items()
}
_WITH_VALUE: Final = frozenset({"--data-dir", "--backend", "--url", "--api-key"})
_SWITCHES: Final = frozenset({"--embedded"})
_BEFORE: Final = _WITH_VALUE | _SWITCHES


def core_names() -> frozenset[str]:
    """Return the names of the core's commands and groups, without the commands of a group."""
    return frozenset(_CORE)


@functools.cache
def _sections() -> Mapping[str, Mapping[str, Add]]:
    """Return the commands by section, those of the core before those of plugins."""
    sections = {title: dict(section) for title, section in _SECTIONS.items()}
    for name, command in command_plugins().top().items():
        sections.setdefault(command.section, {})[name] = _plugin_adder(command.add)
    return sections


@functools.cache
def _table() -> Mapping[str, Add]:
    return {name: add for section in _sections().values() for name, add in section.items()}


@functools.cache
def _plugin_adder(target: str) -> Add:
    """Return what adds the commands of a plugin: one value for each function."""
    return lambda app: add_command(target, app)


def _nothing() -> None:
    """The settings in force."""


def _print_version(context: typer.Context, enabled: bool) -> None:
    if enabled:
        _version(context)
        raise typer.Exit


def _before(
    context: typer.Context,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The data directory.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="B", help="The backend."),
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
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
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
        typer.Argument(
            metavar="[FILE|-] [--] [ARGS]...",
            help="A file of code, then its arguments. Options of run go before the file.",
        ),
    ] = None,
    code: Annotated[
        str | None, typer.Option("-c", metavar="CODE", help="The code, instead of a file.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            "-r",
            metavar="R",
            help="python, node, bash or sh.",
        ),
    ] = None,
    timeout: Timeout = None,
    file: Annotated[
        list[str],
        typer.Option(
            "--file",
            "-f",
            metavar="LOCAL[:DEST]",
            help="Upload a file first; repeatable. store:KEY[:DEST] takes a stored file.",
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
    from sandkasten_server.cli.commands import run

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
        own_options=option_names(context.command),
    )
    state = state_of(context, json=json, backend=backend)
    started = begun_command()
    raise SystemExit(run.run(state, job) if started is None else run.finish(state, job, started))


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
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Start it in the background and print its id (see logs and kill). It has no "
            "timeout unless --timeout sets one.",
        ),
    ] = False,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", "-i", help="Pass on standard input, even if it is a terminal."
        ),
    ] = False,
    tty: Annotated[
        bool,
        typer.Option(
            "--tty",
            "-t",
            help="Run it on a terminal of its own, connected to yours. One word runs in a shell "
            "of its own, where the persistent shell is.",
        ),
    ] = False,
    timeout: Timeout = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", "-w", metavar="DIR", help="Working directory.")
    ] = None,
    env: Environment = [],  # noqa: B006
    shell: Annotated[
        str | None, typer.Option("--shell", metavar="NAME", help="Name of the persistent shell.")
    ] = None,
    user: User = None,
    json: Json = False,
) -> None:
    """Run a command in a sandbox and stream its output. The exit status is the command's."""
    from sandkasten_server.cli.commands import exec

    if id.startswith("-"):
        # The parser passes it on, because options may follow the id.
        raise no_option("exec", id, option_names(context.command))
    if command[0] == "--":
        command = command[1:]
    elif command[0].partition("=")[0] in option_names(context.command):
        raise UsageError(
            f"the option {command[0]} is after the id, where the command begins",
            hint=f"options of exec come before the id: sandkasten exec OPTIONS {id} CMD",
        )
    if not command:
        raise typer.BadParameter("name a command after --")
    if detach and (interactive or tty):
        raise typer.BadParameter("-d excludes -i and -t")
    state = state_of(context, json=json)
    if tty:
        from sandkasten_server.cli.commands import shell as interactive_shell

        if json or shell is not None or timeout is not None or user is not None:
            raise typer.BadParameter("-t excludes --json, --shell, --timeout and --user")
        options = {"cwd": cwd, "env": pairs(env, "--env")}
        raise SystemExit(go(interactive_shell.execute(state, id, command, options)))
    line = exec.CommandLine(
        command[0] if len(command) == 1 else tuple(command),
        {
            "timeout_seconds": timeout,
            "cwd": cwd,
            "env": pairs(env, "--env"),
            "shell": shell or "default",
            "user": user,
        },
        stdin=interactive,
    )
    if detach:
        go(exec.detach(state, id, line))
        return
    started = begun_command()
    if started is not None:
        raise SystemExit(go(exec.finish(state, id, line, started)))
    raise SystemExit(go(exec.execute(state, id, line)))


def _logs(
    context: typer.Context,
    id: Id,
    command: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXEC]", help="Id of a command, or a unique prefix; default: the newest."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the command ends.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the output of a command, as far as the sandbox keeps it."""
    from sandkasten_server.cli.commands import exec

    go(exec.logs(state_of(context, json=json), id, command, follow=follow))


def _kill(
    context: typer.Context,
    id: Id,
    command: Annotated[
        str | None, typer.Argument(metavar="[EXEC]", help="Id of a command, or a unique prefix.")
    ] = None,
    signal: Annotated[
        str, typer.Option("--signal", "-s", metavar="SIGNAL", help="A name or a number.")
    ] = "KILL",
    shell: Annotated[
        str | None,
        typer.Option("--shell", metavar="NAME", help="End this persistent shell with its jobs."),
    ] = None,
    json: Json = False,
) -> None:
    """Send a signal to a command and everything it started, or end a persistent shell."""
    from sandkasten_server.cli.commands import exec

    if (command is None) == (shell is None):
        raise typer.BadParameter("name a command, or a shell with --shell")
    if shell is not None:
        go(exec.close_shell(state_of(context, json=json), id, shell))
        return
    assert command is not None
    go(exec.kill(state_of(context, json=json), id, command, signal))


@sandbox_flags("shell")
def _shell(
    context: typer.Context,
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="A sandbox; default: a new one that ends with the shell.",
        ),
    ] = None,
    options: dict[str, Any] = {},  # noqa: B006
    backend: Backend = None,
) -> None:
    """Open an interactive terminal in a sandbox."""
    from sandkasten_server.cli.commands import shell as interactive

    raise SystemExit(go(interactive.shell(state_of(context, backend=backend), id, options)))


def _cp(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path, ID:path, or - (stdin).")],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A path, ID:path, or - (stdout).")
    ],
    user: User = None,
    json: Json = False,
) -> None:
    """Copy files and directories into a sandbox or out of it."""
    from sandkasten_server.cli.commands import cp

    go(cp.copy(state_of(context, json=json), source, destination, user))


def _doctor(
    context: typer.Context,
    measure: Annotated[
        bool,
        typer.Option(help="Create a few sandboxes per backend and measure the time."),
    ] = True,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every backend, and what each can and cannot do.")
    ] = False,
    json: Json = False,
) -> None:
    """Check what this machine needs for sandboxes. Each missing part has a remedy."""
    from sandkasten_server.cli.commands import doctor

    state = state_of(context, json=json)
    raise SystemExit(go(doctor.examine(state, measure=measure, everything=everything)))


def _config_show(
    context: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also print where each value comes from.")
    ] = False,
    daemon: Annotated[
        bool,
        typer.Option("--daemon", help="Those of the daemon, which may have been given others."),
    ] = False,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="The settings file to read.")
    ] = None,
    json: Json = False,
) -> None:
    """Print every setting in force."""
    from sandkasten_server.cli.commands import listings

    state = state_of(context, json=json)
    listings.configuration(state, origin=origin, daemon=daemon, config=config)


def _version(context: typer.Context, json: Json = False) -> None:
    """Print the version."""
    from sandkasten import __version__

    if not json:
        typer.echo(f"sandkasten {__version__}")
        return
    import platform

    from sandkasten_server.cli.output import put_json

    put_json(
        {
            "version": __version__,
            "python": platform.python_version(),
            "platform": f"{platform.system().lower()}-{platform.machine()}",
        }
    )


def described(name: str) -> Any:
    """Return the parser's description of a command; None for an unknown name."""
    group: Any = typer.main.get_command(build(name))
    return group.commands.get(name)


def core_commands() -> list[str]:
    """Return every command of the core, such as `image pull`, for the search for conflicts."""
    app = typer.Typer()
    for add in dict.fromkeys(_CORE.values()):
        add(app)
    # A group may have the name of a plugin's command.
    return [*_CORE, *command_names(app)]


def command_names(app: Any = None) -> list[str]:
    """Return every command, such as `image pull`."""
    app = build() if app is None else app
    names = [info.name for info in app.registered_commands]
    for group in app.registered_groups:
        names += [f"{group.name} {info.name}" for info in group.typer_instance.registered_commands]
    return sorted(names)
