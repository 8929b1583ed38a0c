"""Machines of Modal: sandboxes of one app, found by their name and their tags.

A sandbox has the id of ours as its name, which Modal keeps unique among those that run in an app.
So a create that is asked twice makes one, and one whose answer was lost is found. Our programs are
a layer of the image, which Modal builds once. The key of a sandbox is a variable of the gate: files
that the SDK adds to a sandbox are kept by Modal, and it promises nothing about their mode.

The gate is reached by a command in the sandbox, whose standard input and output Modal streams: a
sandbox without a network cannot have a port that is reached from outside, and so none has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import modal

from sandkasten.backends.cloud import provider_errors
from sandkasten.backends.cloud.machine_plan import KEYS_VARIABLE, PORT, RUNNER, keys_variable
from sandkasten.backends.cloud.modal.modal_session import ModalSession
from sandkasten.backends.cloud.modal.modal_traits import TRAITS
from sandkasten.backends.cloud.modal.relay_stream import RelayStream
from sandkasten.backends.cloud.provider import LABEL_ID, LABEL_OWNER
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.readiness import Readiness, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.backends.cloud.differences import Traits
    from sandkasten.backends.cloud.modal.modal_options import ModalOptions
    from sandkasten.backends.cloud.modal.modal_session import Opened
    from sandkasten.backends.cloud.provider import MachineOrder
    from sandkasten.ports import ByteStream

_MIB: Final = 1 << 20
_LEAST_CPUS, _LEAST_MIB = 0.125, 128
_TAGS_AT_ONCE: Final = 8
_FIND_AGAIN_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_FILES: Final = "sandkasten-modal-"


class ModalProvider:
    """Implements `cloud.provider.Provider`. `owner` is the name of this installation."""

    def __init__(self, options: ModalOptions, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._relay: tuple[str, ...] = (RUNNER, "--relay", str(PORT))
        self._session = ModalSession(options)
        self._ids: dict[str, SandboxId] = {}

    @property
    def name(self) -> str:
        return "modal"

    @property
    def traits(self) -> Traits:
        return TRAITS

    def image(self, names: Sequence[str]) -> str:
        return names[-1]

    async def check(self) -> Readiness:
        await self._session.ask(_hello)
        told = f"app {self._options.app}, environment {self._options.environment or 'of the SDK'}"
        return Readiness(True, requirements=(Requirement(TRAITS.title, True, told),))

    async def start(self, order: MachineOrder) -> str:
        create = partial(self._create, order)
        made = await self._session.ask(create, image=order.image, limited=False)
        # One that is being made has its name already, and is not found yet.
        pauses = iter(_FIND_AGAIN_S)
        while made is None:
            made = await self.find(order.sandbox_id)
            pause = next(pauses, None)
            if made is None and pause is None:
                told = "a sandbox of this name is there, and is not ours or has just ended"
                raise provider_errors.outage(self.name, TRAITS.title, told)
            if made is None:
                await asyncio.sleep(pause or 0.0)
        return made

    async def _create(self, order: MachineOrder, opened: Opened) -> str | None:
        """Make the sandbox; None if there is one of that name, such as one made by a request whose
        answer did not arrive.
        """
        cpus = max(_LEAST_CPUS, order.cpus)
        memory = max(_LEAST_MIB, math.ceil(order.memory_bytes / _MIB))
        try:
            made = await modal.Sandbox.create.aio(
                *order.command,
                app=opened.app,
                client=opened.client,
                name=order.sandbox_id,
                tags=dict(order.labels),
                image=await self._image(order, opened),
                env={**order.env, KEYS_VARIABLE: keys_variable(order)},
                workdir="/",
                timeout=math.ceil(order.lifetime_s),
                cpu=(cpus, cpus),
                memory=(memory, memory),
                block_network=order.network == "none",
                region=order.region or None,
            )
        except modal.exception.AlreadyExistsError:
            return None
        except BaseException:
            # Modal may have lost it. If not, it builds nothing again.
            opened.images.clear()
            raise
        opened.sandboxes[made.object_id] = made
        return made.object_id

    async def _image(self, order: MachineOrder, opened: Opened) -> modal.Image:
        """Return the image with our programs in it, which Modal builds once and keeps."""
        programs = {path: order.files[path] for path in order.programs}
        digest = hashlib.sha256(b"".join(programs[path] for path in sorted(programs))).hexdigest()
        key = (order.image, digest)
        if key not in opened.images:
            with tempfile.TemporaryDirectory(prefix=_FILES) as place:
                await asyncio.to_thread(_write, place, programs)
                made = modal.Image.from_registry(order.image).add_local_dir(place, "/", copy=True)
                built = await made.build.aio(opened.app)
            opened.images[key] = built.object_id
        # Without its local files, which the SDK would ask for again.
        return modal.Image.from_id(opened.images[key], opened.client)

    async def find(self, sandbox_id: SandboxId) -> str | None:
        return await self._session.ask(partial(self._find, sandbox_id))

    async def _find(self, sandbox_id: SandboxId, opened: Opened) -> str | None:
        try:
            found = await modal.Sandbox.from_name.aio(
                self._options.app,
                sandbox_id,
                environment_name=self._options.environment or None,
                client=opened.client,
            )
            tags = await found.get_tags.aio()
        except modal.exception.NotFoundError:
            return None
        # Another installation may use the same app.
        return found.object_id if tags.get(LABEL_OWNER) == self._owner else None

    async def machines(self) -> Mapping[SandboxId, str]:
        return await self._session.ask(self._machines)

    async def _machines(self, opened: Opened) -> Mapping[SandboxId, str]:
        listed = modal.Sandbox.list.aio(
            app_id=opened.app.app_id, tags={LABEL_OWNER: self._owner}, client=opened.client
        )
        found = {one.object_id: one async for one in listed}
        slots = asyncio.Semaphore(_TAGS_AT_ONCE)

        async def learn(machine_id: str) -> None:
            async with slots:
                with contextlib.suppress(modal.exception.NotFoundError):
                    tags = await found[machine_id].get_tags.aio()
                    self._ids[machine_id] = SandboxId(tags.get(LABEL_ID, ""))

        # The list is without the tags, which never change.
        await asyncio.gather(*map(learn, found.keys() - self._ids.keys()))
        self._ids = {one: self._ids[one] for one in found if self._ids.get(one)}
        return {sandbox_id: machine_id for machine_id, sandbox_id in self._ids.items()}

    async def connect(self, machine_id: str) -> ByteStream:
        return await self._session.ask(partial(self._connect, machine_id))

    async def _connect(self, machine_id: str, opened: Opened) -> ByteStream:
        try:
            sandbox = opened.sandboxes.get(machine_id)
            if sandbox is None:
                sandbox = await modal.Sandbox.from_id.aio(machine_id, client=opened.client)
            # Where nothing runs any more, the SDK would wait for minutes for its start.
            if await sandbox.poll.aio() is not None:
                raise provider_errors.lost(machine_id, "Modal has ended it")
            opened.sandboxes[machine_id] = sandbox
            return RelayStream(await sandbox.exec.aio(*self._relay, text=False))
        except (modal.exception.NotFoundError, modal.exception.ConflictError) as exc:
            opened.sandboxes.pop(machine_id, None)
            raise provider_errors.lost(machine_id, str(exc)) from exc

    async def stop(self, machine_id: str) -> None:
        await self._session.ask(partial(self._stop, machine_id))

    async def _stop(self, machine_id: str, opened: Opened) -> None:
        with contextlib.suppress(modal.exception.NotFoundError):
            sandbox = opened.sandboxes.get(machine_id)
            if sandbox is None:
                sandbox = await modal.Sandbox.from_id.aio(machine_id, client=opened.client)
            await sandbox.terminate.aio()
            await sandbox.detach.aio()  # type: ignore[no-untyped-call]
        opened.sandboxes.pop(machine_id, None)

    async def aclose(self) -> None:
        await self._session.aclose()


async def _hello(opened: Opened) -> None:
    await opened.client.hello.aio()  # type: ignore[no-untyped-call]


def _write(place: str, programs: Mapping[str, bytes]) -> None:
    """Write programs below a directory, as old as files can be: the SDK refuses those that it takes
    for changed since it began, by this machine's clock.
    """
    for path, content in programs.items():
        target = Path(place) / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755)
        os.utime(target, (0, 0))
