"""`image build`: images from Dockerfiles, recipes and Debian packages."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from json import dumps as json_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from sandkasten.model.images.known_images import known_image
from sandkasten_build.builder.known_definitions import DEFINITIONS
from sandkasten_server.cli.options import Json, pairs, state_of
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sandkasten.model.images.image_info import BuiltImage, ImageProgress


_RECIPES = (".yaml", ".yml", ".json")


def add_to(group: typer.Typer) -> None:
    """Add the command to the group `image`."""
    group.command("build")(_build)


async def known_names(state: State, context: typer.Context) -> Iterable[str]:
    """Return what completes the first argument."""
    return DEFINITIONS


def _build(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="CONTEXT|NAME",
            help="Directory of a Dockerfile's files; otherwise the name of the new image. "
            "datascience alone: Python with pandas, matplotlib and a kernel; base and "
            "code-interpreter-v1 alone: E2B's templates; sandbox-runtime:base, :python and "
            ":node alone: small ones.",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Dockerfile, or recipe of build steps (.yaml)."
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", metavar="NAME", help="Name of the new image.")
    ] = None,
    build_arg: Annotated[
        list[str],
        typer.Option("--build-arg", metavar="K=V", help="Value of an ARG; repeatable."),
    ] = [],  # noqa: B006  (typer reads it, nothing writes to it)
    debian: Annotated[
        str | None,
        typer.Option("--debian", metavar="SUITE", help="Debian suite, e.g. bookworm."),
    ] = None,
    include: Annotated[
        list[str],
        typer.Option("--include", metavar="A,B", help="Packages to install; repeatable."),
    ] = [],  # noqa: B006
    pip: Annotated[
        list[str],
        typer.Option("--pip", metavar="P", help="Python package to install; repeatable."),
    ] = [],  # noqa: B006
    variant: Annotated[
        str, typer.Option("--variant", metavar="V", help="Variant of mmdebstrap.")
    ] = "minbase",
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            metavar="URL",
            help="Mirror URL, or a line of sources.list; default: as apt here.",
        ),
    ] = None,
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow", metavar="RULE", help="What commands of the build may reach; repeatable."
        ),
    ] = [],  # noqa: B006
    refresh: Annotated[bool, typer.Option("--refresh", help="Ignore the build cache.")] = False,
    json: Json = False,
) -> None:
    """Build an image from a Dockerfile, a recipe or Debian packages, and print its name."""
    if debian is not None and file is not None:
        raise typer.BadParameter("pass either -f FILE or --debian SUITE")
    definition = None if target is None else known_image(target)
    steps: list[dict[str, object]] = [{"pip": pip}] if pip else []
    changed = include or pip or mirror is not None or variant != "minbase" or tag is not None
    if definition is not None and (debian or file or Path(definition).is_dir()):
        definition = None
    if definition is not None and not changed and not build_arg and not allow:
        go(built_known(state_of(context, json=json), definition, refresh=refresh))
        return
    if definition is not None:
        image = DEFINITIONS[definition]
        debian, include, steps = image.suite, [*image.packages, *include], image.steps(*pip)
    if debian is None and (include or pip or mirror is not None or variant != "minbase"):
        raise typer.BadParameter("--include, --pip, --variant and --mirror go with --debian")
    if debian is None and not (file or "").endswith(_RECIPES):
        if target is None:
            raise typer.BadParameter("name the directory of the build: image build -t NAME .")
        args = pairs(build_arg, "--build-arg")
        state = state_of(context, json=json)
        go(from_dockerfile(state, target, file, tag, args, allow, refresh=refresh))
        return
    if build_arg:
        raise typer.BadParameter("--build-arg goes with a Dockerfile")
    if (target is None) == (tag is None):
        raise typer.BadParameter("name the new image once: image build NAME")
    name = target or tag or ""
    if file is not None:
        go(stepped(state_of(context, json=json), name, file, allow, refresh=refresh))
        return
    if allow:
        raise typer.BadParameter("--allow goes with -f")
    assert debian is not None
    packages = [
        package.strip() for words in include for package in words.split(",") if package.strip()
    ]
    state = state_of(context, json=json)
    go(bootstrapped(state, name, debian, packages, steps, variant, mirror, refresh=refresh))


async def built_known(state: State, name: str, *, refresh: bool) -> None:
    from sandkasten_server.cli.commands.images import images_of

    with last_line(quiet=state.json) as progress:
        built = await images_of(state).build_known(name, refresh=refresh, progress=progress)
    tell_built(state, built)


async def bootstrapped(
    state: State,
    name: str,
    suite: str,
    include: list[str],
    steps: list[dict[str, object]],
    variant: str,
    mirror: str | None,
    *,
    refresh: bool,
) -> None:
    from sandkasten_server.cli.commands.images import images_here

    with last_line(quiet=state.json) as progress:
        built = await images_here(state).build_debian(
            f"{name}-debian" if steps else name,
            suite,
            include=include,
            variant=variant,
            mirror=mirror,
            refresh=refresh,
            progress=progress,
        )
    if steps:
        built = await _with_steps(state, f"{name}-debian", name, steps, refresh=refresh)
    tell_built(state, built)


async def _with_steps(
    state: State, base: str, name: str, steps: list[dict[str, object]], *, refresh: bool
) -> BuiltImage:
    """Build an image of another one. This machine fetches Python packages."""
    from sandkasten_server.cli.commands.images import images_here

    with TemporaryDirectory(prefix="sandkasten-build-") as directory:
        file = Path(directory) / "recipe.json"
        file.write_text(json_of({"base": base, "steps": steps}))
        return await images_here(state).build_steps(
            name, file, refresh=refresh, progress=None if state.json else show_step
        )


async def stepped(state: State, name: str, file: str, allow: list[str], *, refresh: bool) -> None:
    from sandkasten_server.cli.commands.images import images_here

    progress = None if state.json else show_step
    built = await images_here(state).build_steps(
        name, file, allow=allow, refresh=refresh, progress=progress
    )
    tell_built(state, built)


async def from_dockerfile(
    state: State,
    directory: str,
    file: str | None,
    name: str | None,
    build_args: dict[str, str],
    allow: list[str],
    *,
    refresh: bool,
) -> None:
    from sandkasten_server.cli.commands.images import images_here

    built = await images_here(state).build(
        directory,
        file=file,
        name=name,
        build_args=build_args,
        allow=allow,
        refresh=refresh,
        progress=None if state.json else show_step,
    )
    tell_built(state, built)


def show_step(update: ImageProgress) -> None:
    from sandkasten_server.cli.output import say, visible

    say(f"  {visible(update.text)}" if update.text else visible(update.step))


def tell_built(state: State, built: BuiltImage) -> None:
    from sandkasten_server.cli.commands.images import described, tell_new
    from sandkasten_server.cli.output import put_json, say, tell

    if state.json:
        warnings = list(built.warnings)
        put_json({**described(built.image), "cached": built.cached, "warnings": warnings})
        return
    for warning in built.warnings:
        tell("warning", warning)
    if built.cached:
        say("cached: nothing was built (--refresh builds it again)")
    tell_new(state, [built.image])


@contextmanager
def last_line(*, quiet: bool) -> Iterator[Callable[[ImageProgress], None] | None]:
    """Show the last line of output on a terminal, elsewhere every line unless `quiet`."""
    if not sys.stderr.isatty():
        from sandkasten_server.cli.commands.images import plain_steps

        yield None if quiet else plain_steps()
        return
    from rich.console import Console
    from rich.markup import escape

    from sandkasten_server.cli.output import colour, visible

    console = Console(stderr=True, no_color=not colour(sys.stderr))
    with console.status("") as status:

        def show(update: ImageProgress) -> None:
            status.update(escape(visible(update.text or update.step))[: console.width - 4])

        yield show
