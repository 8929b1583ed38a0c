"""Every command with its options, as typer reads them; what a command does lies in its module.

The bodies import what they need when they run: `--help`, completion and `run` must not wait
for code that only another command uses.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

import typer

from sandkasten.cli.imaging import image_app
from sandkasten.cli.names import complete
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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A sandbox, or a unique beginning of its id.", autocompletion=complete
    ),
]
Environment = Annotated[
    list[str], typer.Option("--env", "-e", metavar="K=V", help="A variable inside; repeatable.")
]
Limits = Annotated[
    list[str],
    typer.Option("--limit", metavar="NAME=N", help="A limit, e.g. mem_limit_mb=256; repeatable."),
]
Image = Annotated[str | None, typer.Option("--image", "-i", metavar="I", help="The image.")]
Workspace = Annotated[
    str | None,
    typer.Option("--workspace", metavar="NAME", help="A workspace that stays; made at first use."),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="Share that workspace with others that share it.")
]
Mounts = Annotated[
    list[str],
    typer.Option("--mount", metavar="NAME", help="One of the operator's mounts; repeatable."),
]
Isolation = Annotated[
    str | None,
    typer.Option("--isolation", metavar="I", help="standard, gvisor or strongest."),
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="S", help="Seconds until it is ended.")
]


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
    app.command("create")(_create)
    app.command("exec", context_settings=_PASSES_ON)(_exec)
    app.command("shell")(_shell)
    app.command("cp")(_cp)
    app.command("ls")(_ls)
    app.command("ps")(_ps)
    app.command("stats")(_stats)
    app.command("update")(_update)
    app.command("pause")(_pause)
    app.command("resume")(_resume)
    app.command("rm")(_rm)
    app.command("doctor")(_doctor)
    app.command("version")(_version)
    config = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    config.command("show")(_config_show)
    config.callback(help="The settings in force.")(_nothing)
    app.add_typer(config, name="config")
    app.add_typer(image_app(), name="image")
    from sandkasten.cli.workspaces import commands

    app.add_typer(commands(), name="workspace")
    from sandkasten.cli import audits, keys, stored

    app.add_typer(keys.commands(), name="key")
    app.add_typer(audits.commands(), name="audit")
    app.add_typer(stored.commands(), name="files")
    from sandkasten.cli import installing, serving

    serving.add_to(app)
    installing.add_to(app)
    return app


def _nothing() -> None:
    """The settings in force."""


def _state(context: typer.Context, *, json: bool = False) -> State:
    state = cast("State", context.obj)
    state.json = json
    return state


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
    state = _state(context)
    state.data_dir, state.backend = data_dir, backend
    state.url, state.api_key, state.embedded = url, api_key, embedded


def _run(
    context: typer.Context,
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
    image: Image = None,
    timeout: Timeout = None,
    env: Environment = [],  # noqa: B006  (typer reads it, nobody writes to it)
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", metavar="LOCAL[:DEST]", help="Put a file there first; repeatable."
        ),
    ] = [],  # noqa: B006
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
    limit: Limits = [],  # noqa: B006
    workspace: Workspace = None,
    shared: Shared = False,
    mount: Mounts = [],  # noqa: B006
    isolation: Isolation = None,
    json: Json = False,
) -> None:
    """Run code once in a sandbox of its own. The exit status is the code's; 124: out of time."""
    from sandkasten.cli import running

    job = running.Job(
        code=code,
        words=tuple(words or ()),
        runtime=runtime,
        image=image,
        timeout_s=timeout,
        env=running.pairs(env, "--env"),
        files=tuple(file),
        artifacts=tuple(artifact),
        out=out,
        stdin=stdin,
        limits=running.figures(limit),
        workspace=workspace,
        workspace_mode="shared" if shared else None,
        mounts=tuple(mount),
        isolation=isolation,
    )
    raise SystemExit(running.run(_state(context, json=json), job))


def _create(
    context: typer.Context,
    image: Image = None,
    ttl: Annotated[
        float | None, typer.Option("--ttl", metavar="S", help="Seconds it lives without activity.")
    ] = None,
    env: Environment = [],  # noqa: B006
    label: Annotated[
        list[str], typer.Option("--label", "-l", metavar="K=V", help="A label; repeatable.")
    ] = [],  # noqa: B006
    limit: Limits = [],  # noqa: B006
    profile: Annotated[str | None, typer.Option("--profile", metavar="P")] = None,
    isolation: Isolation = None,
    session_key: Annotated[
        str | None,
        typer.Option("--session-key", metavar="K", help="Take the one with this key if it lives."),
    ] = None,
    workspace: Workspace = None,
    shared: Shared = False,
    mount: Mounts = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Make a sandbox that stays; print its id."""
    from sandkasten.cli import life, running

    wish = life.Wish(
        image=image,
        ttl_s=ttl,
        env=running.pairs(env, "--env"),
        labels=running.pairs(label, "--label"),
        limits=running.figures(limit),
        profile=profile,
        isolation=isolation,
        session_key=session_key,
        workspace=workspace,
        workspace_mode="shared" if shared else None,
        mounts=tuple(mount),
    )
    go(life.create(_state(context, json=json), wish))


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
    from sandkasten.cli import executing, running

    if command[0] == "--":
        command = command[1:]
    if not command:
        raise typer.BadParameter("name a command after --")
    order = executing.Order(
        command=command[0] if len(command) == 1 else tuple(command),
        timeout_s=timeout,
        cwd=cwd,
        env=running.pairs(env, "--env"),
        shell=shell,
    )
    raise SystemExit(go(executing.execute(_state(context, json=json), id, order)))


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
    image: Image = None,
) -> None:
    """An interactive terminal in a sandbox."""
    from sandkasten.cli import interactive

    raise SystemExit(go(interactive.shell(_state(context), id, image)))


def _cp(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path, ID:path, or - (stdin).")],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A path, ID:path, or - (stdout).")
    ],
    json: Json = False,
) -> None:
    """Copy files and directories into a sandbox or out of it."""
    from sandkasten.cli import copying

    go(copying.copy(_state(context, json=json), source, destination))


def _ls(
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", help="Also what is kept ready for the next one-shot.")
    ] = False,
    json: Json = False,
) -> None:
    """List sandboxes."""
    from sandkasten.cli import showing

    go(showing.sandboxes(_state(context, json=json), everything=all_))


def _ps(context: typer.Context, id: Id, json: Json = False) -> None:
    """List the processes of a sandbox."""
    from sandkasten.cli import showing

    go(showing.processes(_state(context, json=json), id))


def _stats(context: typer.Context, id: Id, json: Json = False) -> None:
    """Show what a sandbox uses. Memory, cpu, processes, disk, network."""
    from sandkasten.cli import showing

    go(showing.stats(_state(context, json=json), id))


def _update(
    context: typer.Context,
    id: Id,
    ttl: Annotated[
        float | None, typer.Option("--ttl", metavar="S", help="Seconds it lives without activity.")
    ] = None,
    lifetime: Annotated[
        float | None, typer.Option("--lifetime", metavar="S", help="Seconds since its creation.")
    ] = None,
    label: Annotated[
        list[str],
        typer.Option("--label", "-l", metavar="K=V", help="A label; these replace all it has."),
    ] = [],  # noqa: B006
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Take its labels away.")] = False,
    json: Json = False,
) -> None:
    """Change how long a sandbox lives, or its labels."""
    from sandkasten.cli import life, running
    from sandkasten.model.sandbox import UpdateRequest

    if ttl is None and lifetime is None and not label and not no_labels:
        raise typer.BadParameter("say what to change: --ttl, --lifetime, --label or --no-labels")
    labels = running.pairs(label, "--label") if label or no_labels else None
    request = UpdateRequest(ttl_s=ttl, lifetime_s=lifetime, labels=labels)
    go(life.update(_state(context, json=json), id, request))


def _pause(
    context: typer.Context,
    id: Id,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Also give back the memory it can spare.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop everything in a sandbox until it is resumed."""
    from sandkasten.cli import life

    go(life.pause(_state(context, json=json), id, reclaim=reclaim))


def _resume(context: typer.Context, id: Id, json: Json = False) -> None:
    """Let a paused sandbox go on where it stopped."""
    from sandkasten.cli import life

    go(life.resume(_state(context, json=json), id))


def _rm(
    context: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", autocompletion=complete)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every sandbox.")] = False,
    json: Json = False,
) -> None:
    """Destroy sandboxes."""
    from sandkasten.cli import life

    if bool(ids) == all_:
        raise typer.BadParameter("name sandboxes, or say --all")
    raise SystemExit(go(life.remove(_state(context, json=json), ids or [], everything=all_)))


def _doctor(
    context: typer.Context,
    measure: Annotated[
        bool,
        typer.Option(help="Make a few sandboxes of each kind and say how long that takes."),
    ] = True,
    json: Json = False,
) -> None:
    """Say what sandboxes need here. Whether it is there, and what to do where it is not."""
    from sandkasten.cli import doctor

    raise SystemExit(go(doctor.examine(_state(context, json=json), measure=measure)))


def _config_show(
    context: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also say where each comes from.")
    ] = False,
    json: Json = False,
) -> None:
    """Print every setting in force."""
    from sandkasten.cli import showing

    showing.configuration(_state(context, json=json), origin=origin)


def _version(context: typer.Context, json: Json = False) -> None:
    """Print the version."""
    from sandkasten.cli import showing

    showing.version(_state(context, json=json))


def command_names() -> list[str]:
    """Every command a user can type, for the documentation's own test."""
    app: Any = build()
    names = [info.name for info in app.registered_commands]
    for group in app.registered_groups:
        names += [f"{group.name} {info.name}" for info in group.typer_instance.registered_commands]
    return sorted(names)
