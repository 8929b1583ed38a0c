"""Builds of images as one object: a bootstrap of Debian, and the steps of a recipe or Dockerfile.

Implements `ImageBuilder` of `images.image_plugins`. Reads and checks a file before any step of it
is done. Raises the errors of the parsers, of `debian_bootstrap` and of `step_builder`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.images.known_images import KNOWN_IMAGES
from sandkasten.model.spelling import nearest
from sandkasten_build.builder.build_plan import BuildPlan, Stage, configured_by
from sandkasten_build.builder.debian_bootstrap import Bootstrap, debian_recipe
from sandkasten_build.builder.dockerfile import steps_of
from sandkasten_build.builder.dockerfile_stages import SCRATCH, parse_dockerfile
from sandkasten_build.builder.dockerignore import parse_dockerignore
from sandkasten_build.builder.known_definitions import DEFINITIONS
from sandkasten_build.builder.recipe import parse_recipe, with_rules
from sandkasten_build.builder.step_builder import Scratch, StepBuilder

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from sandkasten.model.images.image_info import BootstrapRequest, BuildRequest, OnProgress
    from sandkasten.model.images.known_images import KnownImage
    from sandkasten.ports import Workbench
    from sandkasten_build.builder.build_plan import Base
    from sandkasten_runtime.images.image_config import ImageConfig
    from sandkasten_runtime.images.image_plugins import Built, FindBase
    from sandkasten_runtime.images.layers.image_store import LayerStore

# A bootstrap downloads as much as a large image.
_BOOTSTRAP_TIMEOUT_S: Final = 3600.0
_MAX_FILE_BYTES: Final = 1024 * 1024


class Builder:
    """`read_yaml` reads a recipe."""

    def __init__(self, store: LayerStore, read_yaml: Callable[[Path], object]) -> None:
        self._store = store
        self._read_yaml = read_yaml

    def known(self, name: str) -> KnownImage:
        return DEFINITIONS[name]

    def bootstrap(
        self, request: BootstrapRequest, *, progress: OnProgress, called_off: threading.Event
    ) -> Built:
        recipe = debian_recipe(request.suite, request.include, request.variant, request.mirror)
        return Bootstrap(self._store, timeout_s=_BOOTSTRAP_TIMEOUT_S).build(
            request.name,
            recipe,
            refresh=request.refresh,
            progress=progress,
            called_off=called_off,
        )

    async def build(
        self,
        request: BuildRequest,
        *,
        bench: Workbench,
        find_base: FindBase,
        progress: OnProgress | None,
    ) -> Built:
        if request.context is not None:
            plan = await _dockerfile_plan(request, bench, find_base)
        else:
            tree: object = request.recipe
            if tree is None:
                tree = await asyncio.to_thread(self._read_yaml, Path(request.file))
            recipe = parse_recipe(tree, bench.network, request.allow)
            plan = BuildPlan(recipe.base, (Stage(await find_base(recipe.base), recipe.steps),))
        return await StepBuilder(self._store, bench).build(
            request.name,
            plan,
            Path(request.context or Path(request.file).parent),
            refresh=request.refresh,
            progress=progress,
        )


async def _dockerfile_plan(
    request: BuildRequest, bench: Workbench, find_base: FindBase
) -> BuildPlan:
    file, context = Path(request.file), Path(request.context or "")
    network = bench.network(with_rules(None, request.allow))
    data, ignored = await asyncio.to_thread(_read_dockerfile, file, context)
    ignore = await asyncio.to_thread(parse_dockerignore, ignored)
    stages: list[Stage] = []
    configs: list[ImageConfig] = []
    warnings: list[str] = []
    for stage in await asyncio.to_thread(parse_dockerfile, data, request.build_args):
        base: Base | int
        if stage.parent is not None:
            base, config = stage.parent, configs[stage.parent]
        else:
            with _on_line(stage.line):
                begin = Scratch() if stage.base == SCRATCH else await find_base(stage.base)
            base, config = begin, begin.config
        parsed = await asyncio.to_thread(steps_of, stage, config, network, ignore)
        stages.append(Stage(base, parsed.steps, parsed.lines))
        configs.append(configured_by(config, parsed.steps))
        warnings += parsed.warnings
    return BuildPlan(stage.base, tuple(stages), tuple(warnings))


@contextmanager
def _on_line(line: int) -> Iterator[None]:
    """Add the line of the Dockerfile to errors raised inside."""
    try:
        yield
    except SandkastenError as exc:
        raise type(exc)(
            f"Dockerfile line {line}: {exc.message}",
            hint=exc.hint,
            **{**exc.details, "line": line},
        ) from exc


def _read_dockerfile(file: Path, context: Path) -> tuple[bytes, bytes]:
    """Return the Dockerfile and what it ignores: `<file>.dockerignore`, else `.dockerignore`."""
    if not context.is_dir():
        near = nearest(context.name, KNOWN_IMAGES)
        mistyped = "" if near is None else f"did you mean sandkasten image build {near}? Or "
        raise InvalidRequest(
            f"{context} is not a directory",
            hint=f"{mistyped}name the directory of a Dockerfile (image build -t NAME DIRECTORY), "
            "or build from a recipe (-f FILE.yaml) or from Debian packages (--debian SUITE), or "
            f"one of {', '.join(KNOWN_IMAGES)} by its name alone",
        )
    data = _read_regular(file)
    if data is None:
        raise InvalidRequest(f"there is no {file}", hint="name the Dockerfile with -f")
    ignored = _read_regular(file.with_name(f"{file.name}.dockerignore"))
    if ignored is None:
        ignored = _read_regular(context / ".dockerignore")
    return data, ignored or b""


def _read_regular(path: Path) -> bytes | None:
    try:
        # Non-blocking: opening a FIFO without a writer would block for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_FILE_BYTES + 1) if regular else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise InvalidRequest(
            f"{path} cannot be read: {exc.strerror}", hint="check its owner and mode"
        ) from exc
    if not regular or len(data) > _MAX_FILE_BYTES:
        raise InvalidRequest(
            f"{path} is not a file of at most {_MAX_FILE_BYTES} bytes", hint="name another file"
        )
    return data
