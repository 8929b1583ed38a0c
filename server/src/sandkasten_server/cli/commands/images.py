"""`image …`: the image store."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from sandkasten_server.cli.exit_status import EXIT_OURS
from sandkasten_server.cli.options import Json, state_of
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sandkasten.client.images import AsyncImages
    from sandkasten.model.images.image_info import ImageInfo, ImageProgress

_SHORT: Final = 12

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name or id of an image, or a prefix of its id.",
    ),
]


def commands() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    app.callback(help="The images of this machine.")(_nothing)
    app.command("ls")(_ls)
    app.command("pull")(_pull)
    app.command("import")(_import)
    app.command("export")(_export)
    app.command("rm")(_rm)
    app.command("inspect")(_inspect)
    app.command("tag")(_tag)
    app.command("gc")(_gc)
    app.command("du")(_du)
    return app


def _nothing() -> None:
    """The images of this machine."""


def _ls(context: typer.Context, json: Json = False) -> None:
    """List images."""
    go(listed(state_of(context, json=json)))


def _pull(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="As in python:3.11-slim, host:5000/team/app:1 or app@sha256:…"
        ),
    ],
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            metavar="P",
            help="Platform, e.g. linux/arm64/v8; default: this machine's.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Pull an image from its registry and print its name."""
    go(pulled(state_of(context, json=json), name, platform))


def _import(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A docker archive, an OCI layout (tar or directory) or a tar of a root file "
            "system, compressed or not.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="N", help="Name of the image, instead of those in the archive."
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option("--platform", metavar="P", help="Platform to import, e.g. linux/arm64."),
    ] = None,
    json: Json = False,
) -> None:
    """Import the images of a file and print their names."""
    # A directory (an OCI layout) cannot be uploaded to a daemon.
    state = state_of(context, json=json)
    images = images_here(state) if os.path.isdir(file) else images_of(state)
    go(imported(state, images, file, name, platform))


def _export(
    context: typer.Context,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write.")],
    format: Annotated[
        Literal["docker", "oci"],
        typer.Option("--format", help="Format: docker archive or OCI layout."),
    ] = "docker",
    json: Json = False,
) -> None:
    """Write an image to one file."""
    go(exported(state_of(context, json=json), name, file, format))


def _rm(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    json: Json = False,
) -> None:
    """Remove names; an image is removed with its last name, unless a sandbox uses it."""
    raise SystemExit(go(removed(state_of(context, json=json), names)))


def _inspect(context: typer.Context, name: Name, json: Json = False) -> None:
    """Show the layers, the configuration and the users of an image."""
    go(inspected(state_of(context, json=json), name))


def _tag(
    context: typer.Context,
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name to add.")],
    json: Json = False,
) -> None:
    """Add a name to an image."""
    go(tagged(state_of(context, json=json), name, new))


def _gc(context: typer.Context, json: Json = False) -> None:
    """Remove images without a name that no sandbox uses."""
    go(collected(state_of(context, json=json)))


def _du(context: typer.Context, json: Json = False) -> None:
    """Show the disk usage of images."""
    go(measured(state_of(context, json=json)))


# ---- what they do


def images_of(state: State) -> AsyncImages:
    from sandkasten.client.images import AsyncImages

    return AsyncImages(**state.where)


def images_here(state: State) -> AsyncImages:
    """Return the images of this machine, for operations that the HTTP API does not have."""
    from sandkasten.client.images import AsyncImages

    url = state.place.url
    if url is None or not url.startswith("unix:"):
        return images_of(state)
    from sandkasten.client.server.embedded import settings

    data_dir = settings(state.here).data_dir
    return AsyncImages(data_dir=data_dir, url="embedded", backend=state.backend)


async def listed(state: State) -> None:
    from sandkasten_server.cli.output import age, put_json, put_table, size

    images = await images_of(state).list()
    if state.json:
        put_json([described(image) for image in images])
        return
    now = time.time()
    put_table(
        ("NAME", "ID", "SIZE", "LAYERS", "PLATFORM", "AGE", "IN USE"),
        [
            (
                name,
                short(image.id),
                size(image.bytes),
                str(len(image.layers)),
                _platform(image),
                age(now - image.created_at),
                str(len(image.used_by)) if image.used_by else "-",
            )
            for image in images
            for name in (image.names or ("-",))
        ],
    )


async def pulled(state: State, name: str, platform: str | None) -> None:
    with progress_bar(quiet=state.json) as progress:
        image = await images_of(state).pull(name, platform=platform, progress=progress)
    tell_new(state, [image])


async def imported(
    state: State, images: AsyncImages, file: str, name: str | None, platform: str | None
) -> None:
    with progress_bar(quiet=state.json) as progress:
        new_images = await images.import_archive(
            file, name=name, platform=platform, progress=progress
        )
    tell_new(state, new_images)


def tell_new(state: State, images: Sequence[ImageInfo]) -> None:
    """Print imported images: names on stdout, details on stderr."""
    from sandkasten_server.cli.output import counted, put, put_json, say, size

    if state.json:
        put_json([described(image) for image in images])
        return
    for image in images:
        for name in image.names or (image.id,):
            put(name)
        layers = counted(len(image.layers), "layer")
        say(f"{short(image.id)}: {size(image.bytes)} in {layers}")


async def exported(state: State, name: str, file: str, format: Literal["docker", "oci"]) -> None:
    from sandkasten_server.cli.output import put, put_json, say, size

    with progress_bar(quiet=state.json) as progress:
        done = await images_here(state).export(name, file, format=format, progress=progress)
    if state.json:
        put_json(asdict(done))
        return
    put(done.digest)
    say(f"wrote {done.path} ({size(done.bytes)})")


async def removed(state: State, names: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    from sandkasten.errors import SandkastenError
    from sandkasten_server.cli.output import put, put_json, report

    removals: list[dict[str, Any]] = []
    failures: list[SandkastenError] = []
    for name in dict.fromkeys(names):
        try:
            done = await images_of(state).remove(name)
        except SandkastenError as exc:
            failures.append(exc)
            if not state.json:
                report(exc, as_json=False)
        else:
            removals.append(asdict(done))
            if not state.json:
                put("\n".join(done.names) or done.id)
    if state.json:
        failed = [{"code": error.code, "message": error.message} for error in failures]
        put_json({"removed": removals, "failed": failed})
    return EXIT_OURS if failures else 0


async def inspected(state: State, name: str) -> None:
    from sandkasten_server.cli.commands.listings import timestamp
    from sandkasten_server.cli.output import put, put_json, put_table, size

    image = await images_of(state).inspect(name)
    if state.json:
        put_json(described(image))
        return
    rows = [
        ("id", image.id),
        *(("name", spelling) for spelling in image.names),
        ("size", size(image.bytes)),
        ("platform", _platform(image)),
        ("added", timestamp(image.created_at)),
        ("built", image.created or "-"),
        ("source", image.source or "-"),
        ("user", image.user or "-"),
        ("workdir", image.workdir or "-"),
        ("entrypoint", " ".join(image.entrypoint) or "-"),
        ("cmd", " ".join(image.cmd) or "-"),
        *(("env", f"{key}={value}") for key, value in image.env.items()),
        *(("label", f"{key}={value}") for key, value in image.labels.items()),
        *(("used by", user) for user in image.used_by),
    ]
    put_table(("WHAT", "IS"), rows)
    put("")
    put_table(
        ("LAYER", "SIZE", "FILES", "IMAGES"),
        [
            (layer.id, size(layer.bytes), str(layer.files), str(layer.shared))
            for layer in image.layers
        ],
    )


async def tagged(state: State, name: str, new: str) -> None:
    from sandkasten_server.cli.output import put, put_json

    image = await images_of(state).tag(name, new)
    if state.json:
        put_json(described(image))
    else:
        put("\n".join(image.names))


async def collected(state: State) -> None:
    from sandkasten_server.cli.output import counted, put_json, say, size

    done = await images_of(state).collect()
    if state.json:
        put_json(asdict(done))
    else:
        images, layers = counted(len(done.images), "image"), counted(len(done.layers), "layer")
        say(f"removed {images} and {layers}, {size(done.freed_bytes)}")


async def measured(state: State) -> None:
    from sandkasten_server.cli.output import put_json, put_table, size

    used = await images_of(state).usage()
    if state.json:
        put_json(asdict(used))
        return
    put_table(
        ("WHAT", "IS"),
        [
            ("images", str(used.images)),
            ("layers", str(used.layers)),
            ("on disk", size(used.bytes)),
            ("without sharing", size(used.separate_bytes)),
            ("garbage", size(used.reclaimable_bytes)),
        ],
    )


# ---- how they speak


def described(image: ImageInfo) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    return {
        "id": image.id,
        "names": list(image.names),
        "size_bytes": image.bytes,
        "os": image.os,
        "architecture": image.architecture,
        "variant": image.variant,
        "created_at": timestamp(image.created_at),
        "created": image.created,
        "source": image.source,
        "layers": [asdict(layer) for layer in image.layers],
        "env": dict(image.env),
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "cmd": list(image.cmd),
        "workdir": image.workdir,
        "labels": dict(image.labels),
        "used_by": list(image.used_by),
    }


def short(the_id: str) -> str:
    return the_id.removeprefix("sha256:")[:_SHORT]


def _platform(image: ImageInfo) -> str:
    return "/".join(part for part in (image.os, image.architecture, image.variant) if part)


def plain_steps() -> Callable[[ImageProgress], None]:
    """Return a function that prints each step once, and each line of output."""
    from sandkasten_server.cli.output import say, visible

    shown_steps: set[str] = set()

    def show(update: ImageProgress) -> None:
        if update.step not in shown_steps:
            shown_steps.add(update.step)
            say(visible(update.step))
        if update.text:
            say(f"  {visible(update.text)}")

    return show


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[ImageProgress], None] | None]:
    """Show one progress bar per step on a terminal, elsewhere a line when a step begins.

    With `quiet` there are no lines.
    """
    if not sys.stderr.isatty():
        yield None if quiet else plain_steps()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    from sandkasten_server.cli.output import colour, visible

    bars: dict[str, TaskID] = {}
    console = Console(stderr=True, no_color=not colour(sys.stderr))
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
    ) as progress:

        def show(update: ImageProgress) -> None:
            if update.step not in bars:
                bars[update.step] = progress.add_task(visible(update.step), total=update.total)
            progress.update(bars[update.step], completed=update.done, total=update.total)

        yield show
