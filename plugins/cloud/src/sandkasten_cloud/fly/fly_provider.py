"""Fly Machines as a provider of `CloudBackend`.

Whether a request took effect is unknown when its answer is lost. The name of a machine is unique
in its app and follows from the sandbox, so a create is repeated: the second request either
creates the machine, or gets the answer that it exists.

The gate of a machine is reached at a port of the app that no other machine has, through Fly's
proxy, which does not change the bytes; or at the private address of the machine. If two daemons
choose the same port at the same time, a connection may reach the wrong gate. Its certificate
differs, so the connection is refused.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import BackendUnavailable, InvalidImage, SandkastenError
from sandkasten.model.addresses import is_address
from sandkasten.model.retries import Backoff
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.model.spelling import one_line
from sandkasten_cloud import provider_errors
from sandkasten_cloud.fly import machine_request
from sandkasten_cloud.fly.fly_options import TOKEN_VARIABLE
from sandkasten_cloud.fly.fly_traits import TRAITS
from sandkasten_cloud.fly.machines_api import MachinesApi, Refused, Unanswered
from sandkasten_cloud.provider import is_machine_id
from sandkasten_runtime.backends.gate.gate_stream import GateStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.ports import ByteStream
    from sandkasten_cloud.differences import Traits
    from sandkasten_cloud.fly.fly_options import FlyOptions
    from sandkasten_cloud.provider import MachineOrder

_T = TypeVar("_T")
_ATTEMPTS: Final = 3
_BACKOFF: Final = Backoff(0.5, 4.0)
# Fly allows one request of a kind per second. A longer Retry-After is an error at once.
_LONGEST_PAUSE_S: Final = 5.0
_PATIENCE_S: Final = 20.0
_START_S: Final = 120
_WAIT_S: Final = 30
_CONNECT_S: Final = 10.0
_BUFFER_BYTES: Final = 256 * 1024
# How long the list of ports in use is valid.
_FRESH_S: Final = 10.0
_CAPACITY: Final = "insufficient_capacity"


class FlyProvider:
    """Implements `Provider`."""

    def __init__(self, options: FlyOptions, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._api = MachinesApi(options)
        self._taken: set[int] = set()
        self._looked_at: float | None = None
        self._choosing = asyncio.Lock()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._listing = asyncio.Lock()
        self._found: Mapping[SandboxId, str] | None = None
        self._found_at = 0.0

    @property
    def name(self) -> str:
        return "fly"

    @property
    def traits(self) -> Traits:
        return TRAITS

    def image(self, names: Sequence[str]) -> str:
        return names[-1]

    # ---- readiness and errors

    async def check(self) -> Readiness:
        options = self._options
        missing = options.missing()
        if missing is not None:
            return _missing(missing.reason, missing.remedy)
        try:
            await self._ask(self._api.app)
            if options.reach == "service" and not options.address:
                addresses = await self._ask(self._api.addresses)
                if all(address.get("shared") for address in addresses):
                    return _missing(
                        f"app {options.app} has no address of its own",
                        f"run fly ips allocate-v6 -a {options.app}, or allocate-v4",
                    )
        except Refused as exc:
            if exc.gone:
                return _missing(
                    f"Fly has no app {options.app}",
                    f"run fly apps create {options.app} --network {options.app}",
                )
            raised = self._translated(exc)
            return _missing(raised.message, raised.hint)
        except SandkastenError as exc:
            return _missing(exc.message, exc.hint)
        return Readiness(ready=True, unenforced=TRAITS.unenforced)

    def _translated(self, exc: Refused) -> SandkastenError:
        title = TRAITS.title
        if exc.unauthorized:
            return provider_errors.unauthorized(self.name, title, TOKEN_VARIABLE, exc.message)
        if exc.rate_limited or exc.reason == _CAPACITY:
            return provider_errors.rate_limited(
                self.name, title, exc.retry_after_s or None, exc.message
            )
        if exc.uncertain:
            return provider_errors.outage(self.name, title, str(exc))
        if "image" in exc.message.lower() or "manifest" in exc.message.lower():
            return InvalidImage(
                f"Fly cannot use the image: {exc.message}",
                hint="name an image that Fly can pull, such as registry.fly.io/APP:TAG",
            )
        return BackendUnavailable(
            f"Fly refused the request: {exc}",
            hint=f"run fly machine list -a {self._options.app}, and check backends.fly",
            backend=self.name,
        )

    async def _ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request, and again if Fly wants it slower or had trouble.

        Raise Refused for what waiting does not change, and a named error for the rest.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        failures = limited = 0
        while True:
            wanted_s = 0.0
            try:
                return await request()
            except Refused as exc:
                if not exc.rate_limited and not exc.uncertain:
                    raise
                error, wanted_s = self._translated(exc), exc.retry_after_s
                limited, failures = limited + exc.rate_limited, failures + exc.uncertain
            except Unanswered as exc:
                error = provider_errors.outage(self.name, TRAITS.title, str(exc))
                failures += 1
            pause_s = max(_BACKOFF.pause_s(limited + failures), wanted_s)
            late = loop.time() + pause_s > until
            if late or failures == _ATTEMPTS or wanted_s > _LONGEST_PAUSE_S:
                raise error
            await asyncio.sleep(pause_s)

    # ---- machines

    async def start(self, order: MachineOrder) -> str:
        port = await self._choose_port() if self._options.reach == "service" else None
        body = machine_request.create_body(order, self._options, port)
        machine_id = await self._create(order.sandbox_id, body)
        await self._wait(order.sandbox_id, machine_id)
        return machine_id

    async def _choose_port(self) -> int:
        async with self._choosing:
            now = asyncio.get_running_loop().time()
            if self._looked_at is None or now - self._looked_at > _FRESH_S:
                machines = await self._listed(summary=False)
                ports = (machine_request.service_port(machine) for machine in machines)
                self._taken = {port for port in ports if port is not None}
                self._looked_at = now
            first, last = machine_request.FIRST_PORT, machine_request.LAST_PORT
            port = machine_request.free_port(self._taken, random.randint(first, last))  # noqa: S311
            self._taken.add(port)
            return port

    async def _create(self, sandbox_id: SandboxId, body: Mapping[str, Any]) -> str:
        try:
            machine = await self._ask(lambda: self._api.create(body))
        except Refused as exc:
            if not exc.name_taken:
                raise self._translated(exc) from exc
        else:
            if not is_machine_id(machine.get("id")):
                raise provider_errors.outage(self.name, TRAITS.title, "a machine has no valid id")
            return str(machine["id"])
        machine_id = await self.find(sandbox_id)
        if machine_id is None:
            raise BackendUnavailable(
                f"a machine named {body['name']} exists and is ending",
                hint=f"try again; if it persists, run fly machine list -a {self._options.app}",
                backend=self.name,
            )
        return machine_id

    async def _wait(self, sandbox_id: SandboxId, machine_id: str) -> None:
        until = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                await self._ask(lambda: self._api.wait_until_started(machine_id, _WAIT_S))
                return
            except Refused as exc:
                if exc.unauthorized:
                    raise self._translated(exc) from exc
                machine = await self._shown(machine_id)
                if machine is None or machine_request.has_ended(machine):
                    why = "it vanished" if machine is None else machine_request.end_of(machine)
                    raise BackendUnavailable(
                        f"the machine of sandbox {sandbox_id} did not start: {one_line(why)}",
                        hint=f"the image must have our programs in {self._options.programs}; "
                        f"run fly logs -a {self._options.app}",
                        backend=self.name,
                    ) from exc
                if asyncio.get_running_loop().time() > until:
                    raise provider_errors.outage(
                        self.name, TRAITS.title, f"machine {machine_id} does not start"
                    ) from exc

    async def find(self, sandbox_id: SandboxId) -> str | None:
        return (await self.machines()).get(sandbox_id)

    async def machines(self) -> Mapping[SandboxId, str]:
        """Return all machines of this installation. Callers that wait at the same time share the
        next list, because Fly allows one list per second.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._listing:
            if self._found is None or self._found_at < asked_at:
                found_at = loop.time()
                machine_ids: dict[SandboxId, str] = {}
                # The names are compared here, because code in a machine can change its metadata.
                for machine in await self._listed(summary=True):
                    sandbox_id = machine_request.sandbox_of(machine, self._owner)
                    if sandbox_id is not None:
                        machine_ids[sandbox_id] = str(machine["id"])
                self._found = machine_ids
                self._found_at = found_at
            return self._found

    async def _listed(self, *, summary: bool) -> list[Mapping[str, Any]]:
        """Return the machines of the app that have not been destroyed."""
        try:
            machines = await self._ask(lambda: self._api.machines(summary=summary))
        except Refused as exc:
            raise self._translated(exc) from exc
        return [
            machine
            for machine in machines
            if is_machine_id(machine.get("id")) and not machine_request.is_destroyed(machine)
        ]

    async def _shown(self, machine_id: str) -> Mapping[str, Any] | None:
        try:
            return await self._ask(lambda: self._api.machine(machine_id))
        except Refused as exc:
            if exc.gone:
                return None
            raise self._translated(exc) from exc

    async def connect(self, machine_id: str) -> ByteStream:
        """Ask for the machine first: Fly's proxy accepts connections to machines that are gone."""
        try:
            machine = await self._api.machine(machine_id)
        except Unanswered as exc:
            # The machine can be there while the API is not.
            if machine_id not in self._addresses:
                raise provider_errors.outage(self.name, TRAITS.title, str(exc)) from exc
        except Refused as exc:
            if exc.gone:
                self._addresses.pop(machine_id, None)
                raise provider_errors.lost(machine_id, "Fly does not know its machine") from exc
            if machine_id not in self._addresses or exc.unauthorized:
                raise self._translated(exc) from exc
        else:
            if machine_request.has_ended(machine):
                self._addresses.pop(machine_id, None)
                raise provider_errors.lost(machine_id, machine_request.end_of(machine))
            self._addresses[machine_id] = self._address(machine)
        host, port = self._addresses[machine_id]
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, limit=_BUFFER_BYTES)
        return GateStream(reader, writer)

    def _address(self, machine: Mapping[str, Any]) -> tuple[str, int]:
        port = machine_request.service_port(machine)
        if port is not None:
            return self._options.host, port
        private = str(machine.get("private_ip") or "")
        if not is_address(private):
            raise provider_errors.outage(self.name, TRAITS.title, "a machine has no valid address")
        return private, machine_request.gate_port(machine)

    async def stop(self, machine_id: str) -> None:
        self._addresses.pop(machine_id, None)
        try:
            await self._ask(lambda: self._api.destroy(machine_id))
        except Refused as exc:
            if not exc.gone:
                raise self._translated(exc) from exc

    async def aclose(self) -> None:
        await self._api.aclose()


def _missing(reason: str, remedy: str) -> Readiness:
    return Readiness(ready=False, reason=reason, remedy=remedy)
