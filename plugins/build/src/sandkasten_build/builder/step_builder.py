"""Build images step by step: each step that changes files is one layer, cached by its inputs.

The key of a layer is its parent and the step itself, with the content of copied files, so a build
only does what is new. Commands run in a temporary sandbox. Raises BuildFailed, which names the
step and shows the end of a command's output.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sandkasten.disk.os_errors import translated
from sandkasten.errors import BuildFailed, CommandNotFound, InvalidImage, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands import accounts
from sandkasten.model.images.image_info import ImageProgress
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import RUNNER_PROGRAM
from sandkasten.model.sandbox.package_sets import PYTHON_DIR
from sandkasten_build.builder.build_cache import BuildCache, build_key
from sandkasten_build.builder.build_plan import Copy, Run, configured
from sandkasten_build.builder.copy_step import Placed, pick_all, write_copies
from sandkasten_build.builder.stage_files import gather
from sandkasten_runtime.images.image_config import ImageConfig, machine_architecture
from sandkasten_runtime.images.image_names import new_name
from sandkasten_runtime.images.image_plugins import Built
from sandkasten_runtime.images.layers.image_records import image_id
from sandkasten_runtime.images.layers.layer_tar import write_layer
from sandkasten_runtime.images.layers.overlay import landing, read_merged
from sandkasten_runtime.images.layers.skeleton import MAX_ACCOUNTS_BYTES
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.images.image_info import OnProgress
    from sandkasten.ports import Workbench
    from sandkasten_build.builder.build_plan import BuildPlan, Step
    from sandkasten_runtime.images.layers.image_store import Layer, LayerStore
    from sandkasten_runtime.images.layers.overlay import Parent

# A missing directory is created.
_IN_DIRECTORY: Final = 'mkdir -p -- "$1" && cd -- "$1" && shift && exec "$@"'
# Every line must succeed, as recipes usually expect.
_EVERY_LINE: Final = ("/bin/sh", "-e", "-c")


@dataclass(slots=True)
class _State:
    """The image so far."""

    layers: tuple[str, ...]
    config: ImageConfig
    all_cached: bool = True
    passing: list[str] = field(default_factory=list)
    """Images without a name, recorded only for the sandbox of a step."""

    @property
    def id(self) -> str:
        return image_id(self.layers, self.config)


@dataclass(frozen=True, slots=True)
class Scratch:
    layers: tuple[str, ...] = ()
    config: ImageConfig = ImageConfig()


class StepBuilder:
    def __init__(self, store: LayerStore, bench: Workbench) -> None:
        self._store = store
        self._bench = bench
        self._cache = BuildCache(store.root)

    async def build(
        self,
        name: str | None,
        plan: BuildPlan,
        context: Path,
        *,
        refresh: bool = False,
        progress: OnProgress | None = None,
    ) -> Built:
        """Build the image under its name. `context` is the directory of files to copy."""
        names = [] if name is None else [new_name(name)]
        total, number = sum(len(stage.steps) for stage in plan.stages), 0
        done: list[_State] = []
        async with AsyncExitStack() as stack:
            working = self._store.working()
            await asyncio.to_thread(working.__enter__)
            stack.push(working)
            try:
                for stage in plan.stages:
                    begin = done[stage.base] if isinstance(stage.base, int) else stage.base
                    done.append(state := _State(begin.layers, begin.config))
                    for at, step in enumerate(stage.steps):
                        number += 1
                        label = f"step {number}/{total}"
                        shown = _StepProgress(f"{label}: {step.text}", progress)
                        line = f"Dockerfile line {stage.lines[at]}, " if stage.lines else ""
                        with _naming(f"{line}{label}", step.text):
                            await self._do(state, step, done, context, shown, refresh=refresh)
                image = await asyncio.to_thread(
                    self._store.put_image,
                    state.layers,
                    state.config,
                    names,
                    source=f"steps on {plan.base}",
                )
                state.passing = [id_ for id_ in state.passing if id_ != image.id]
            finally:
                passing = [id_ for built in done for id_ in built.passing]
                await asyncio.to_thread(self._forget, passing)
        cached = all(built.all_cached for built in done)
        return Built(image, cached, plan.warnings)

    async def _do(
        self,
        state: _State,
        step: Step,
        stages: Sequence[_State],
        context: Path,
        progress: _StepProgress,
        *,
        refresh: bool,
    ) -> None:
        if isinstance(step, Run):
            await self._run(state, step, progress, refresh=refresh)
        elif not isinstance(step, Copy):
            progress.begin()
            state.config = configured(state.config, step)
        elif step.stage is None:
            await self._copy(state, step, context, progress, refresh=refresh)
        else:
            trees = [self._store.tree(layer) for layer in stages[step.stage].layers]
            async with self._place() as scratch:
                paths = await to_the_end(gather, trees, step.sources, scratch)
                gathered = replace(step, sources=paths)
                await self._copy(state, gathered, scratch, progress, refresh=refresh)

    async def _copy(
        self, state: _State, step: Copy, context: Path, progress: _StepProgress, *, refresh: bool
    ) -> None:
        picks = await asyncio.to_thread(pick_all, context, step)
        trees = [self._store.tree(layer) for layer in state.layers]
        account = await asyncio.to_thread(_find_account, trees, step.owner, lone_number=True)
        owner = (account.uid, account.gid)
        key = build_key(
            kind="copy",
            form=2,
            parent=state.id,
            content=[picked.digest for picked in picks],
            # A file keeps its source's name if `to` is a directory.
            names=[
                "" if picked.is_directory else os.path.basename(picked.path) for picked in picks
            ],
            to=step.to,
            mode=step.mode,
            owner=owner,
        )
        if self._known(state, key, progress, refresh=refresh):
            return

        def work() -> Layer:
            # Several sources, also those of a pattern, go into a directory.
            into = step.to if len(picks) == 1 else step.to.rstrip("/") + "/"
            placed = [
                Placed(picked, *_place(trees, into, picked.path, directory=picked.is_directory))
                for picked in picks
            ]

            def write(out: BinaryIO) -> None:
                write_copies(context, placed, out, mode=step.mode, owner=owner)

            return _add(self._store, write)

        self._take(state, key, await asyncio.to_thread(work))

    async def _run(
        self, state: _State, step: Run, progress: _StepProgress, *, refresh: bool
    ) -> None:
        # The result of a command may depend on the network, so the network is part of the key.
        reach = {} if step.network.closed else {"network": step.network.public()}
        options = {"argv": step.argv, "env": dict(step.env)} if step.argv else {}
        options |= {"pip": step.pip} if step.pip else {}
        key = build_key(
            kind="run", form=2, parent=state.id, command=step.command, **reach, **options
        )
        if self._known(state, key, progress, refresh=refresh):
            return
        if state.config.architecture not in ("", machine_architecture()):
            raise InvalidImage(
                f"the base is made for {state.config.platform}, so its programs do not run here",
                hint="use a base for this machine",
            )
        async with self._place() as place:
            mounts = (PYTHON_DIR,) if step.pip else ()
            image = await to_the_end(self._passing, state, place, mounts)
            workdir = state.config.workdir or "/"
            command, env = await asyncio.to_thread(_command, step, state.config.user, image.layers)
            command = ("/bin/sh", "-c", _IN_DIRECTORY, "sh", workdir, *command)
            async with self._bench.run(
                image,
                command,
                cwd="/",
                env=env,
                network=step.network,
                pip=step.pip,
                on_line=progress.text,
            ) as changes:
                layer = await asyncio.to_thread(
                    _add,
                    self._store,
                    lambda out: write_layer(
                        changes.tree, out, lambda _: None, first_id=changes.first_id
                    ),
                )
        self._take(state, key, layer)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[Path]:
        """Yield a scratch directory of the store."""
        place = self._store.place()
        path = await asyncio.to_thread(place.__enter__)
        try:
            yield path
        finally:
            await to_the_end(place.__exit__, None, None, None)

    def _known(self, state: _State, key: str, progress: _StepProgress, *, refresh: bool) -> bool:
        layer = None if refresh else self._cache.get(key)
        if layer is None or not self._store.has_layer(layer):
            progress.begin()
            state.all_cached = False
            return False
        progress.cached()
        state.layers += (layer,)
        return True

    def _take(self, state: _State, key: str, layer: Layer) -> None:
        self._cache.put(key, layer.diff_id)
        state.layers += (layer.diff_id,)

    def _passing(self, state: _State, place: Path, mounts: Sequence[str]) -> Image:
        """Record the image so far, so that a sandbox can be made of it. Its skeleton is in `place`
        and has `mounts`.
        """
        if not self._store.there(state.id):
            state.passing.append(state.id)
        stored = self._store.put_image(state.layers, state.config, [])
        return Image(
            name=stored.id,
            kind="layers",
            layers=self._store.build_trees(stored.layers, place, mounts),
            id=stored.id,
            env=stored.config.env,
        )

    def _forget(self, passing: list[str]) -> None:
        for id_ in passing:
            # It may have been named or removed meanwhile.
            with suppress(SandkastenError):
                image = self._store.find(id_)
                if image is not None and not image.names:
                    self._store.remove(id_, in_use=frozenset())


class _StepProgress:
    def __init__(self, label: str, progress: OnProgress | None) -> None:
        self._label = label
        self._progress = progress

    def begin(self) -> None:
        self._say(self._label)

    def cached(self) -> None:
        self._say(f"{self._label} (cached)")

    def text(self, line: str) -> None:
        if line.strip():
            self._say(self._label, line)

    def _say(self, label: str, text: str = "") -> None:
        if self._progress is not None:
            self._progress(ImageProgress(label, 0, text=text))


@contextmanager
def _naming(label: str, text: str) -> Iterator[None]:
    """Add the step to errors raised inside."""
    try:
        yield
    except CommandNotFound as exc:
        raise BuildFailed(
            f"{label} ({text}): the image has no /bin/sh",
            hint="a run step requires a shell; use a base that has one",
        ) from exc
    except BuildFailed as exc:
        raise BuildFailed(f"{label} ({text}): {exc.message}", hint=exc.hint, **exc.details) from exc


def _command(
    step: Run, user: str, trees: Sequence[str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the command and its variables. A Dockerfile's command runs as the image's user."""
    if not step.argv:
        return (*_EVERY_LINE, step.command), step.env
    if user in ("", "0", "root", "0:0"):
        return step.argv, step.env
    account = _find_account(trees, user)
    become = (RUNNER_PROGRAM, "--as", account.ids)
    return (*become, *step.argv), {"HOME": account.home, **step.env}


def _find_account(
    trees: Sequence[str], text: str, *, lone_number: bool = False
) -> accounts.Account:
    """Return the account that `USER[:GROUP]` names in the image's own files."""
    passwd, group = (
        read_merged(trees, path, MAX_ACCOUNTS_BYTES) or b""
        for path in ("/etc/passwd", "/etc/group")
    )
    return accounts.find_account(passwd, group, text, _invalid_account, lone_number=lone_number)


def _invalid_account(message: str, hint: str) -> BuildFailed:
    return BuildFailed(message, hint=hint)


def _place(
    trees: list[str], to: str, source: str, *, directory: bool
) -> tuple[tuple[Parent, ...], str]:
    """Return the parent directories, and the target path without a leading slash."""
    name = os.path.basename(source)
    whole = landing(trees, to)
    into = directory or to.endswith("/") or (whole is not None and whole.there)
    if into and whole is not None:
        at = whole.parents[-1].path if whole.parents else ""
        # A directory's content goes into `to`; its own entry sets the mode if `to` is new.
        if directory:
            return (whole.parents if whole.there else whole.parents[:-1]), at
        return whole.parents, f"{at}/{name}" if at else name
    parent, _, last = to.rstrip("/").rpartition("/")
    way = None if into else landing(trees, parent)
    if way is None:
        raise BuildFailed(
            f"{to} cannot be created: a parent is not a directory in the image",
            hint="copy to another path",
        )
    at = way.parents[-1].path if way.parents else ""
    return way.parents, f"{at}/{last}" if at else last


def _add(store: LayerStore, write: Callable[[BinaryIO], None]) -> Layer:
    """Add a layer from what `write` writes, while it writes."""
    source = _Written(write)
    with translated("read what a step made"), source:
        return store.add_layer(cast("BinaryIO", source))


class _Written:
    """A stream of what a function writes. Reading raises the error of the function, if it fails."""

    def __init__(self, write: Callable[[BinaryIO], None]) -> None:
        reading, writing = os.pipe()
        self._reading = os.fdopen(reading, "rb", buffering=0)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(write, writing), daemon=True)

    def __enter__(self) -> _Written:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A writer without a reader gets EPIPE, and ends.
        self._reading.close()
        self._thread.join()

    def read(self, size: int) -> bytes:
        data = self._reading.read(size)
        if not data:
            self._thread.join()
            if self._failure is not None:
                raise self._failure
        return data or b""

    def _work(self, write: Callable[[BinaryIO], None], writing: int) -> None:
        try:
            with os.fdopen(writing, "wb", buffering=1024 * 1024) as out:
                write(out)
        except BaseException as exc:  # noqa: BLE001  (raised by `read`, in the other thread)
            self._failure = exc
