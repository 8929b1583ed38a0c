"""Options and arguments that several commands share, and the state they all begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from sandkasten.cli.sandbox_names import complete

if TYPE_CHECKING:
    from sandkasten.cli.state import State

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
Pip = Annotated[
    list[str],
    typer.Option("--pip", metavar="PACKAGE", help="A package of Python to have; repeatable."),
]
Npm = Annotated[
    list[str],
    typer.Option("--npm", metavar="PACKAGE", help="A package of npm to have; repeatable."),
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="B", help="local, oci, gvisor or docker."),
]
Isolation = Annotated[
    str | None,
    typer.Option("--isolation", metavar="I", help="standard, gvisor or strongest."),
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="S", help="Seconds until it is ended.")
]

RunId = Annotated[str, typer.Argument(metavar="RUN", help="run_…")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Say on stderr what happens, as it happens.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Print the run's id and leave it to the daemon.")
]
Most = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000)]
RunStatus = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help="running, completed, failed, cancelled or lost."),
]


def state_of(context: typer.Context, *, json: bool = False, backend: str | None = None) -> State:
    """`backend` given after the command counts more than the one before it."""
    state = cast("State", context.obj)
    state.json = json
    state.backend = backend or state.backend
    return state
