"""Machines of Modal: sandboxes of one app, found by their name and their tags.

A sandbox has our id as its name, which Modal keeps unique among those that run in an app.
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

from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_cloud import provider_errors
from sandkasten_cloud.machine_plan import KEYS_VARIABLE, PORT, RUNNER, keys_variable
from sandkasten_cloud.modal.modal_session import ModalSession
from sandkasten_cloud.modal.modal_traits import TRAITS
from sandkasten_cloud.modal.relay_stream import RelayStream
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.ports import ByteStream
    from sandkasten_cloud.differences import Traits
    from sandkasten_cloud.modal.modal_options import ModalOptions
    from sandkasten_cloud.modal.modal_session import Opened
    from sandkasten_cloud.provider import MachineOrder

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
        place = f"app {self._options.app}, environment {self._options.environment or 'of the SDK'}"
        return Readiness(True, requirements=(Requirement(TRAITS.title, True, place),))

    async def start(self, order: MachineOrder) -> str:
        create = partial(self._create, order)
        machine_id = await self._session.ask(create, image=order.image, limited=False)
        # One that is being made has its name already, and is not found yet.
        pauses = iter(_FIND_AGAIN_S)
        while machine_id is None:
            machine_id = await self.find(order.sandbox_id)
            pause = next(pauses, None)
            if machine_id is None and pause is None:
                reason = "a sandbox of this name is there, and is not ours or has just ended"
                raise provider_errors.outage(self.name, TRAITS.title, reason)
            if machine_id is None:
                await asyncio.sleep(pause or 0.0)
        return machine_id

    async def _create(self, order: MachineOrder, opened: Opened) -> str | None:
        """Make the sandbox; None if there is one of that name, such as one made by a request whose
        answer did not arrive.
        """
        cpus = max(_LEAST_CPUS, order.cpus)
        memory = max(_LEAST_MIB, math.ceil(order.memory_bytes / _MIB))
        try:
            sandbox = await modal.Sandbox.create.aio(
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
        opened.sandboxes[sandbox.object_id] = sandbox
        return sandbox.object_id

    async def _image(self, order: MachineOrder, opened: Opened) -> modal.Image:
        """Return the image with our programs in it, which Modal builds once and keeps."""
        programs = {path: order.files[path] for path in order.programs}
        digest = hashlib.sha256(b"".join(programs[path] for path in sorted(programs))).hexdigest()
        key = (order.image, digest)
        if key not in opened.images:
            with tempfile.TemporaryDirectory(prefix=_FILES) as place:
                await asyncio.to_thread(_write, place, programs)
                image = modal.Image.from_registry(order.image).add_local_dir(place, "/", copy=True)
                built = await image.build.aio(opened.app)
            opened.images[key] = built.object_id
        # Without its local files, which the SDK would ask for again.
        return modal.Image.from_id(opened.images[key], opened.client)

    async def find(self, sandbox_id: SandboxId) -> str | None:
        return await self._session.ask(partial(self._find, sandbox_id))

    async def _find(self, sandbox_id: SandboxId, opened: Opened) -> str | None:
        try:
            sandbox = await modal.Sandbox.from_name.aio(
                self._options.app,
                sandbox_id,
                environment_name=self._options.environment or None,
                client=opened.client,
            )
            tags = await sandbox.get_tags.aio()
        except modal.exception.NotFoundError:
            return None
        # Another installation may use the same app.
        return sandbox.object_id if tags.get(LABEL_OWNER) == self._owner else None

    async def machines(self) -> Mapping[SandboxId, str]:
        return await self._session.ask(self._machines)

    async def _machines(self, opened: Opened) -> Mapping[SandboxId, str]:
        listed = modal.Sandbox.list.aio(
            app_id=opened.app.app_id, tags={LABEL_OWNER: self._owner}, client=opened.client
        )
        sandboxes = {sandbox.object_id: sandbox async for sandbox in listed}
        slots = asyncio.Semaphore(_TAGS_AT_ONCE)

        async def learn(machine_id: str) -> None:
            async with slots:
                with contextlib.suppress(modal.exception.NotFoundError):
                    tags = await sandboxes[machine_id].get_tags.aio()
                    self._ids[machine_id] = SandboxId(tags.get(LABEL_ID, ""))

        # The list is without the tags, which never change.
        await asyncio.gather(*map(learn, sandboxes.keys() - self._ids.keys()))
        self._ids = {key: self._ids[key] for key in sandboxes if self._ids.get(key)}
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
