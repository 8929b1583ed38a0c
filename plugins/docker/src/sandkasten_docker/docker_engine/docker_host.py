"""Containers, volumes and networks of an engine, as far as running a daemon on it requires.

Knows neither sandbox nor plan. Missing objects are None or skipped; an unreachable engine raises
BackendUnavailable, and a refusal is raised with what the caller can do about it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, Conflict, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten_docker.docker_engine.docker_address import address_of
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sandkasten_docker.docker_options import DockerOptions

USUAL_SOCKET: Final = "/var/run/docker.sock"
_TAKEN: Final = ("port is already allocated", "address already in use")
_NOT_OURS: Final = "cannot assign requested address"
_NO_SOURCE: Final = "bind source path does not exist"
_MAX_FILE: Final = 64 << 10
_MAX_SAID: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DockerFacts:
    version: str
    api: tuple[int, int]
    remapped: bool
    """True if root in its containers is not root on its machine, and containers may opt out."""


@dataclass(frozen=True, slots=True)
class HostedContainer:
    """A container."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    state: str
    """`running`, `exited`, `created`, `restarting`, …"""
    started_at: str
    published: tuple[tuple[str, str], ...]
    """Address and port."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Output and status of a command in a container."""

    status: int
    text: str


class DockerHost:
    """One engine; `aclose` closes the connection. Belongs to one event loop."""

    def __init__(self, options: DockerOptions) -> None:
        self.address = address_of(options)
        self._client = DockerClient(self.address, options.timeout_s)

    @property
    def socket(self) -> str:
        """Path of the engine's socket on its machine; over tcp, the usual path."""
        return USUAL_SOCKET if self.address.kind == "tcp" else self.address.path

    @property
    def machine(self) -> str:
        """Host name of the engine's machine, if it is not this one."""
        return "" if self.address.kind == "unix" else self.address.shown

    async def aclose(self) -> None:
        await self._client.aclose()

    async def facts(self) -> DockerFacts:
        with _told("asking the Docker Engine what it is"):
            version, info = await self._client.version(), await self._client.info()
        options = [str(option) for option in info.get("SecurityOptions") or ()]
        rootless = any("name=rootless" in option for option in options)
        remapped = not rootless and any("name=userns" in option for option in options)
        try:
            major, minor = (int(part) for part in str(version["ApiVersion"]).split("."))
        except (KeyError, ValueError) as exc:
            raise BackendUnavailable(
                f"what answers at {self.address.shown} does not report an API version",
                hint="name a Docker Engine in DOCKER_HOST",
            ) from exc
        return DockerFacts(str(version.get("Version", "")), (major, minor), remapped)

    # ---- containers

    async def container(self, name: str) -> HostedContainer | None:
        try:
            container = await self._client.inspect(name)
        except Refused as exc:
            if exc.not_there:
                return None
            raise translated(exc, f"looking at container {name}") from exc
        bindings = (container.get("HostConfig") or {}).get("PortBindings") or {}
        return HostedContainer(
            id=str(container["Id"]),
            name=str(container["Name"]).lstrip("/"),
            image=str(container["Config"]["Image"]),
            labels=container["Config"].get("Labels") or {},
            state=str(container["State"]["Status"]),
            started_at=str(container["State"].get("StartedAt", "")),
            published=tuple(
                (str(binding.get("HostIp", "")), str(binding.get("HostPort", "")))
                for several in bindings.values()
                for binding in several or ()
            ),
        )

    async def labelled(self, *labels: str) -> Sequence[Mapping[str, Any]]:
        """Return containers with each of these labels; all containers without any."""
        with _told("listing containers"):
            return await self._client.containers(*labels)

    async def create(self, name: str, body: dict[str, Any]) -> None:
        with _told(f"creating container {name}"):
            await self._client.create(name, body)

    async def put(self, name: str, directory: str, archive: bytes) -> None:
        """Put a tar archive into a volume of a container, started or not."""
        with _told(f"writing into container {name}"):
            await self._client.put(name, directory, archive)

    async def start(self, name: str) -> None:
        with _told(f"starting container {name}"):
            await self._client.start(name)

    async def stop(self, name: str, grace_s: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL after `grace_s`. A missing or ended one is
        fine.
        """
        try:
            async with (
                asyncio.timeout(grace_s + 30),
                self._client._asked(patient=True) as docker,
                docker._query(
                    f"containers/{name}/stop", "POST", params={"t": str(grace_s)}
                ) as response,
            ):
                await response.read()
        except Refused as exc:
            if not exc.not_there:
                raise translated(exc, f"stopping container {name}") from exc

    async def remove(self, name: str) -> None:
        with _told(f"removing container {name}"):
            await self._client.remove(name)

    async def logs(self, name: str) -> str:
        with _told(f"reading what container {name} wrote"):
            return await self._client.logs(name)

    async def ask(self, name: str, argv: Sequence[str], timeout_s: float) -> CommandOutput | None:
        """Run a command in it; None if it does not run or did not answer in time."""
        try:
            async with asyncio.timeout(timeout_s), self._client._asked(patient=True) as docker:
                execution = await docker.containers.container(name).exec(list(argv), workdir="/")
                output = bytearray()
                async with execution.start(detach=False) as stream:
                    while len(output) < _MAX_SAID and (part := await stream.read_out()):
                        if part.stream == 1:
                            output += part.data
                status = (await execution.inspect())["ExitCode"]
        except (Refused, TimeoutError):
            return None
        return (
            None if status is None else CommandOutput(int(status), output.decode(errors="replace"))
        )

    async def read(self, name: str, path: str) -> bytes | None:
        """Return a small file of a container, running or not; None if missing."""
        try:
            return await self._client.content_of(name, path, _MAX_FILE)
        except Refused as exc:
            if exc.not_there:
                return None
            raise translated(exc, f"reading {path} of container {name}") from exc

    # ---- images

    async def image_user(self, name: str) -> str | None:
        """Return the user of an image (empty: root); None if the image does not exist."""
        with _told(f"looking for image {name}"):
            image = await self._client.image(name)
        return None if image is None else str((image.get("Config") or {}).get("User") or "")

    async def images(self, repository: str) -> list[str]:
        """Return every name that images of this repository have."""
        with _told("listing images"):
            async with self._client._asked() as docker:
                filters = json.dumps({"reference": [repository]})
                images = await docker._query_json("images/json", params={"filters": filters})
        return [str(name) for image in images for name in image.get("RepoTags") or ()]

    async def remove_image(self, name: str) -> bool:
        """Remove an image; return whether it is gone: one in use by a container stays."""
        try:
            async with self._client._asked() as docker:
                await docker._query_json(f"images/{name}", "DELETE")
        except Refused as exc:
            if exc.conflict or exc.not_there:
                return exc.not_there
            raise translated(exc, f"removing image {name}") from exc
        return True

    # ---- volumes and networks

    async def volume(self, name: str) -> Mapping[str, str] | None:
        """Return its labels; None if there is no such volume."""
        with _told(f"looking for volume {name}"):
            volume = await self._client.volume(name)
        return None if volume is None else volume.get("Labels") or {}

    async def volumes(self, *labels: str) -> list[str]:
        with _told("listing volumes"):
            return [str(volume["Name"]) for volume in await self._client.volumes(*labels)]

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        with _told(f"making volume {name}"):
            await self._client.make_volume(name, labels)

    async def remove_volume(self, name: str) -> bool:
        """Remove a volume; return whether it is gone: one in use by a container stays."""
        try:
            await self._client.remove_volume(name)
        except Refused as exc:
            if exc.conflict:
                return False
            raise translated(exc, f"removing volume {name}") from exc
        return True

    async def make_network(self, name: str, labels: Mapping[str, str]) -> None:
        if await self._network(name) is not None:
            return
        body = {"Name": name, "CheckDuplicate": True, "Labels": dict(labels)}
        with _told(f"making network {name}"):
            async with self._client._asked() as docker:
                await docker._query_json("networks/create", "POST", data=body)

    async def remove_network(self, name: str, labels: Mapping[str, str]) -> bool:
        """Remove a network; return whether one with these labels existed and is gone."""
        network = await self._network(name)
        if network is None or not labels.items() <= (network.get("Labels") or {}).items():
            return False
        with _told(f"removing network {name}"):
            async with (
                self._client._asked() as docker,
                docker._query(f"networks/{network['Id']}", "DELETE") as response,
            ):
                await response.read()
        return True

    async def _network(self, name: str) -> Mapping[str, Any] | None:
        with _told("listing networks"):
            async with self._client._asked() as docker:
                filters = json.dumps({"name": [name]})
                networks = await docker._query_json("networks", params={"filters": filters})
        return next((network for network in networks if network["Name"] == name), None)


@contextmanager
def _told(doing: str) -> Iterator[None]:
    try:
        yield
    except Refused as exc:
        message = exc.message.strip()
        if any(text in message for text in _TAKEN):
            raise Conflict(
                f"{doing}: the address is taken ({message})",
                hint="choose another with --listen HOST:PORT",
            ) from exc
        if _NOT_OURS in message:
            raise InvalidRequest(
                f"{doing}: the Docker Engine's machine has no such address ({message})",
                hint="choose one that it has with --listen HOST:PORT",
            ) from exc
        if _NO_SOURCE in message:
            raise InvalidRequest(
                f"{doing}: {message}",
                hint="pass paths of the Docker Engine's machine with --socket, --agents and "
                "--workflows",
            ) from exc
        raise translated(exc, doing) from exc
