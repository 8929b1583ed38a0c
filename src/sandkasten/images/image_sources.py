"""Sources of images besides archives: registries, Debian packages, recipes of steps.

Keeps their settings, and imports each one only when it is used: most processes never fetch or build
anything. A bootstrap is blocking, and an event cancels it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import (
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.images.registry.image_reference import DOCKER_HUB, parse_reference
from sandkasten.model.images.known_images import KNOWN_IMAGES
from sandkasten.model.images.pull_rules import PullLimits
from sandkasten.model.spelling import nearest

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from sandkasten.images.builder.debian_bootstrap import Built
    from sandkasten.images.builder.recipe import Base, Recipe
    from sandkasten.images.image_config import ImageConfig
    from sandkasten.images.layers.image_store import LayerStore, StoredImage
    from sandkasten.images.registry.puller import Puller
    from sandkasten.images.registry.registry_credentials import Access
    from sandkasten.images.registry.registry_http import Patience
    from sandkasten.images.signatures.image_trust import ImageTrust
    from sandkasten.model.images.image_info import BuildRequest, ImageProgress
    from sandkasten.ports import Workbench

    Report = Callable[[ImageProgress], None]

# A bootstrap downloads as much as a large image.
BUILD_TIMEOUT_S = 3600.0
_MAX_FILE_BYTES = 1024 * 1024
# A request waits: a machine without a network must say so within seconds.
_REQUEST_ATTEMPTS = 3
_REQUEST_CONNECT_S = 5.0


class Sources:
    """`registries` are the settings of each registry, by host; `read_recipe` reads YAML; `trust`
    has the rules about signatures.
    """

    def __init__(
        self,
        store: LayerStore,
        *,
        registries: Mapping[str, Access] | None = None,
        limits: PullLimits | None = None,
        read_recipe: Callable[[Path], object] | None = None,
        trust: ImageTrust | None = None,
    ) -> None:
        self._store = store
        self.trust = trust
        self._read_recipe = read_recipe
        self._registries = dict(registries or {})
        self._limits = limits or PullLimits()

    def knows_registry(self, name: str) -> bool:
        """Return whether requests may name any image of this registry."""
        registry = parse_reference(name).registry
        return registry == DOCKER_HUB or registry in self._registries

    async def pull(self, name: str, platform: str | None, progress: Report | None) -> StoredImage:
        from sandkasten.images.registry.registry_http import Patience

        patience = Patience(whole_s=self._limits.seconds)
        puller = self._puller(patience, self._limits.image_bytes, unsigned=True)
        return await puller.pull(name, platform=platform, progress=progress)

    async def pull_for_request(self, name: str, progress: Report | None) -> StoredImage:
        """Pull within the limits of the store too, and give up soon without a network."""
        from sandkasten.images.registry.registry_http import Patience

        used = await asyncio.to_thread(lambda: sum(one.bytes for one in self._store.layers()))
        left = self._limits.store_bytes - used
        patience = Patience(
            attempts=_REQUEST_ATTEMPTS, connect_s=_REQUEST_CONNECT_S, whole_s=self._limits.seconds
        )
        most = self._limits.image_bytes
        puller = self._puller(patience, min(most, max(left, 0)), unsigned=False)
        try:
            return await puller.pull(name, progress=progress)
        except PayloadTooLarge as exc:
            if left >= most:
                raise
            raise QuotaExceeded(
                f"image {name} does not fit into the store: {exc.message}",
                hint="remove images (sandkasten image rm, image gc), or raise images.max_bytes",
                image=name,
            ) from exc

    def _puller(self, patience: Patience, max_bytes: int, *, unsigned: bool) -> Puller:
        from sandkasten.images.registry.puller import Puller
        from sandkasten.images.registry.registry_credentials import Keyring

        return Puller(
            self._store,
            Keyring(self._registries),
            patience=patience,
            max_bytes=max_bytes,
            trust=self.trust,
            unsigned=unsigned,
        )

    def debian(
        self,
        name: str,
        *,
        suite: str,
        include: Sequence[str],
        variant: str,
        mirror: str | None,
        refresh: bool,
        report: Report,
        called_off: threading.Event,
    ) -> Built:
        from sandkasten.images.builder.debian_bootstrap import Bootstrap, debian_recipe

        recipe = debian_recipe(suite, include, variant, mirror)
        return Bootstrap(self._store, timeout_s=BUILD_TIMEOUT_S).build(
            name, recipe, refresh=refresh, progress=report, called_off=called_off
        )

    async def recipe(
        self,
        request: BuildRequest,
        bench: Workbench,
        find_base: Callable[[str], Awaitable[StoredImage]],
    ) -> tuple[Base | int, Recipe]:
        """Read and check everything that a build does, before any of it is done."""
        if request.context is not None:
            return await self._dockerfile(request, bench, find_base)
        from sandkasten.images.builder.recipe import parse_recipe

        tree: object = request.recipe
        if tree is None:
            if self._read_recipe is None:
                raise UnsupportedByBackend(
                    "recipes cannot be read here", hint="use the embedded engine"
                )
            tree = await asyncio.to_thread(self._read_recipe, Path(request.file))
        recipe = parse_recipe(tree, bench.network, request.allow)
        return await find_base(recipe.base), recipe

    async def _dockerfile(
        self,
        request: BuildRequest,
        bench: Workbench,
        find_base: Callable[[str], Awaitable[StoredImage]],
    ) -> tuple[Base | int, Recipe]:
        from sandkasten.images.builder.dockerfile import steps_of
        from sandkasten.images.builder.dockerfile_stages import SCRATCH, parse_dockerfile
        from sandkasten.images.builder.dockerignore import parse_dockerignore
        from sandkasten.images.builder.recipe import Recipe, Stage, configured_by, with_rules
        from sandkasten.images.builder.step_builder import Scratch

        file, context = Path(request.file), Path(request.context or "")
        network = bench.network(with_rules(None, request.allow))
        data, ignored = await asyncio.to_thread(_read_dockerfile, file, context)
        ignore = await asyncio.to_thread(parse_dockerignore, ignored)
        stages: list[Stage] = []
        configs: list[ImageConfig] = []
        warnings: list[str] = []
        for one in await asyncio.to_thread(parse_dockerfile, data, request.build_args):
            base: Base | int
            if one.parent is not None:
                base, config = one.parent, configs[one.parent]
            else:
                with _on_line(one.line):
                    begin = Scratch() if one.base == SCRATCH else await find_base(one.base)
                base, config = begin, begin.config
            found = await asyncio.to_thread(steps_of, one, config, network, ignore)
            stages.append(Stage(base, found.steps, found.lines))
            configs.append(configured_by(config, found.steps))
            warnings += found.warnings
        *before, last = stages
        return last.base, Recipe(one.base, last.steps, last.lines, tuple(before), tuple(warnings))

    async def steps(
        self,
        request: BuildRequest,
        base: Base | int,
        recipe: Recipe,
        *,
        bench: Workbench,
        progress: Report | None,
    ) -> Built:
        from sandkasten.images.builder.step_builder import StepBuilder

        return await StepBuilder(self._store, bench).build(
            request.name,
            base,
            recipe,
            Path(request.context or Path(request.file).parent),
            refresh=request.refresh,
            progress=progress,
        )


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
