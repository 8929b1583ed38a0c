"""The Docker Engine requests that we need, over aiodocker. Knows no sandbox.

An engine that does not answer raises BackendUnavailable. One that refuses raises `Refused`, which
stays in this package: the caller knows what the refusal means. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    InvalidConfiguration,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.model.spelling import one_line
from sandkasten_docker.docker_engine import response_checks
from sandkasten_docker.docker_engine.docker_address import no_answer
from sandkasten_docker.docker_engine.docker_pulse import DockerHealthCheck
from sandkasten_docker.docker_engine.ssh_tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Mapping,
        Sequence,
    )

    import aiodocker
    import aiohttp
    from aiodocker.stream import Stream

    from sandkasten_docker.docker_engine.docker_address import DockerAddress, Tls

_OK, _NOT_MODIFIED, _FORBIDDEN, _NOT_THERE, _CONFLICT = 200, 304, 403, 404, 409
T = TypeVar("T")
_UNREACHABLE = 900
_TAR_BYTES = 64 << 10
# Interval and limit for polling a container that another process removes.
_GOING_PAUSE_S = 0.05
_NO_SPACE = "no space left on device"


class Refused(Exception):
    """The engine's answer to a request that it would not or could not fulfil."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = one_line(message, 600)

    @property
    def not_there(self) -> bool:
        return self.status == _NOT_THERE

    @property
    def conflict(self) -> bool:
        return self.status == _CONFLICT


def translated(exc: Refused, what: str) -> SandkastenError:
    """Translate a refusal for callers that have nothing to add."""
    if _NO_SPACE in exc.message:
        return QuotaExceeded(
            f"{what}: the Docker Engine's disk is full",
            hint="free space where the Docker Engine keeps its data (docker system df)",
        )
    if exc.conflict:
        return Conflict(f"{what}: {exc.message}", hint="see docker ps -a and docker volume ls")
    if exc.status == _FORBIDDEN:
        return PolicyDenied(
            f"{what}: the Docker Engine forbids it ({exc.message})",
            hint="an authorization plugin or a socket proxy refuses a required call; the "
            "Docker guide lists them",
        )
    return BackendUnavailable(f"{what}: {exc.message}", hint="see the Docker Engine's own log")


async def asked(question: Awaitable[T], about: str) -> T:
    """Raise if the engine refuses a request whose refusal the caller could not handle."""
    try:
        return await question
    except Refused as exc:
        raise translated(exc, f"the Docker Engine was asked about {about}") from exc


class DockerClient:
    """Opens its connection at first use; `aclose` closes it and the tunnel, if there is one."""

    def __init__(self, address: DockerAddress, timeout_s: float = 60.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._docker: aiodocker.Docker | None = None
        self._tunnel = Tunnel(address) if address.kind == "ssh" else None
        self._opening = asyncio.Lock()
        self._pulse = DockerHealthCheck(self.ping, timeout_s)

    # ---- the engine itself

    async def ping(self) -> None:
        """Return when the engine has answered, whatever the answer is."""
        async with self._asked() as docker:
            url = docker._canonicalize_url("_ping", versioned_api=False)
            async with docker.session.get(url) as response:
                await response.read()

    async def version(self) -> Mapping[str, Any]:
        async with self._asked() as docker:
            return response_checks.mapping(await docker.version())

    async def info(self) -> Mapping[str, Any]:
        async with self._asked() as docker:
            info = response_checks.mapping(await docker.system.info())
            response_checks.strings(info.get("SecurityOptions") or [])
            return info

    # ---- containers

    async def create(self, name: str | None, config: dict[str, Any]) -> str:
        async with self._asked() as docker:
            return response_checks.container_id(
                (await docker.containers.create(config, name=name)).id
            )

    async def start(self, container: str) -> None:
        async with self._asked() as docker:
            await docker.containers.container(container).start()

    async def inspect(self, container: str) -> Mapping[str, Any]:
        async with self._asked() as docker:
            details = response_checks.mapping(await docker.containers.container(container).show())
            response_checks.container_id(details.get("Id"))
            state = response_checks.mapping(details.get("State") or {})
            if not isinstance(state.get("Pid") or 0, int):
                raise TypeError("a process without a number")
            response_checks.mapping(details.get("Config") or {})
            response_checks.mapping((details.get("Config") or {}).get("Labels") or {})
            return details

    async def containers(self, *labels: str) -> Sequence[Mapping[str, Any]]:
        """Return all containers, running or not, that have each of these labels."""
        async with self._asked() as docker:
            filters = json.dumps({"label": list(labels)})
            containers = response_checks.labelled(
                await docker._query_json("containers/json", params={"all": "1", "filters": filters})
            )
            for container in containers:
                response_checks.container_id(container.get("Id"))
            return containers

    async def remove(self, container: str) -> None:
        """Kill and remove a container. A missing one is fine; wait for one that is being removed.

        The caller may then remove, as root, what its processes wrote to.
        """
        import aiodocker

        async with self._asked() as docker:
            handle = docker.containers.container(container)
            while True:
                try:
                    await handle.delete(force=True, v=True)
                except aiodocker.DockerError as exc:
                    if exc.status in (_NOT_THERE, _NOT_MODIFIED):
                        return
                    if exc.status != _CONFLICT or "already in progress" not in str(exc.message):
                        raise
                    await asyncio.sleep(_GOING_PAUSE_S)
                else:
                    return

    async def pause(self, container: str) -> None:
        async with self._asked() as docker:
            await docker.containers.container(container).pause()

    async def unpause(self, container: str) -> None:
        async with self._asked() as docker:
            await docker.containers.container(container).unpause()

    async def kill(self, container: str) -> None:
        """Kill a container, which stays. Raise Refused (conflict) if it does not run."""
        async with self._asked() as docker:
            await docker.containers.container(container).kill()

    async def logs(self, container: str) -> str:
        """Return the last lines of its log, for messages."""
        async with self._asked() as docker:
            params = {"stdout": "1", "stderr": "1", "tail": "20"}
            async with docker._query(f"containers/{container}/logs", params=params) as response:
                return response_checks.unframed(await response.read()).decode(errors="replace")[
                    -600:
                ]

    async def stats(self, container: str) -> Mapping[str, Any]:
        async with self._asked() as docker:
            params = {"stream": "0", "one-shot": "1"}
            return response_checks.mapping(
                await docker._query_json(f"containers/{container}/stats", params=params)
            )

    async def oom_events(self, container: str, since: int, until: int) -> Sequence[int]:
        """Return when the kernel killed something in it (ns), as far as the engine remembers."""
        async with self._asked() as docker:
            filters = json.dumps({"container": [container], "event": ["oom"]})
            async with docker._query(
                "events",
                params={"since": str(since), "until": str(until), "filters": filters},
            ) as response:
                text = (await response.read()).decode(errors="replace")
            events = [
                response_checks.mapping(json.loads(line))
                for line in text.splitlines()
                if line.strip()
            ]
            return [int(event.get("timeNano", 0)) for event in events]

    async def run_stream(self, container: str, argv: Sequence[str], user: str) -> Stream:
        """Run a command in it whose standard input and output are the stream."""
        async with self._asked() as docker:
            execution = await docker.containers.container(container).exec(
                list(argv), stdin=True, stdout=True, stderr=True, tty=False, user=user, workdir="/"
            )
            from sandkasten_docker.docker_engine.bounded_response import hand_on_pieces

            stream = execution.start(detach=False)
            try:
                await stream._init()
                hand_on_pieces(stream)
            except BaseException:
                with contextlib.suppress(Exception):
                    await stream.close()
                raise
            self._pulse.follow(stream)
            return stream

    async def put(self, container: str, path: str, archive: bytes) -> None:
        async with (
            self._asked() as docker,
            docker._query(
                f"containers/{container}/archive",
                "PUT",
                params={"path": path},
                # As raw bytes, a large body would be sent in one go by the event loop.
                data=io.BytesIO(archive),
                headers={"Content-Type": "application/x-tar"},
            ) as response,
        ):
            await response.read()

    @asynccontextmanager
    async def archive_of(self, container: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield a tar of a directory in it, running or not, of any size."""
        async with (
            self._asked(patient=True) as docker,
            docker._query(
                f"containers/{container}/archive", params={"path": path}, timeout=None
            ) as response,
        ):
            yield response.content.iter_any()

    async def put_stream(self, container: str, path: str, archive: AsyncIterable[bytes]) -> None:
        """Like `put`, for an archive of any size; it may take as long as it takes."""
        async with (
            self._asked(patient=True) as docker,
            docker._query(
                f"containers/{container}/archive",
                "PUT",
                params={"path": path},
                data=archive,
                headers={"Content-Type": "application/x-tar"},
                timeout=None,
            ) as response,
        ):
            await response.read()

    async def content_of(self, container: str, path: str, most: int) -> bytes | None:
        """Return the content of a file in it, running or not; None if missing, not a file, or
        too long.
        """
        from sandkasten.outgoing_http import read_start

        async with (
            self._asked() as docker,
            docker._query(f"containers/{container}/archive", params={"path": path}) as response,
        ):
            # Room for a header and the padding.
            packed = await read_start(response, most + _TAR_BYTES)
            response.close()
        return response_checks.only_member(packed)

    async def is_link(self, container: str, path: str) -> bool:
        async with self._asked() as docker:
            # Not by `_query`, which looks for a message in the body of a refusal: HEAD has none.
            await docker._check_version()
            url = docker._canonicalize_url(f"containers/{container}/archive")
            async with docker.session.head(
                url, params={"path": path}, allow_redirects=False
            ) as response:
                if response.status == _NOT_THERE:
                    return False
                if response.status != _OK:
                    raise Refused(response.status, response.reason or "")
                header = response.headers.get("X-Docker-Container-Path-Stat", "")
            return bool(
                response_checks.mapping(json.loads(base64.b64decode(header))).get("linkTarget")
            )

    # ---- volumes

    async def volume(self, name: str) -> Mapping[str, Any] | None:
        async with self._asked() as docker, _gone_is_fine():
            return response_checks.mapping(await docker._query_json(f"volumes/{name}"))
        return None

    async def make_volume(
        self, name: str, labels: Mapping[str, str], size_bytes: int | None = None
    ) -> Mapping[str, Any]:
        """Create a volume, held to a size if there is one; an existing one is left as it is."""
        async with self._asked() as docker:
            wanted: dict[str, Any] = {"Name": name, "Labels": dict(labels)}
            if size_bytes is not None:
                wanted["DriverOpts"] = {"size": str(size_bytes)}
            return response_checks.mapping(
                await docker._query_json("volumes/create", "POST", data=wanted)
            )

    async def volumes(self, *labels: str) -> Sequence[Mapping[str, Any]]:
        async with self._asked() as docker:
            filters = json.dumps({"label": list(labels)})
            listing = response_checks.mapping(
                await docker._query_json("volumes", params={"filters": filters})
            )
            volumes = response_checks.labelled(listing.get("Volumes") or [])
            for volume in volumes:
                response_checks.volume_name(volume.get("Name"))
            return volumes

    async def remove_volume(self, name: str) -> None:
        """Remove a volume. Raise Refused (conflict) while a container has it. A missing one is
        fine.
        """
        async with self._asked() as docker, _gone_is_fine():
            await docker._query_json(f"volumes/{name}", "DELETE")

    # ---- images

    async def image(self, name: str) -> Mapping[str, Any] | None:
        async with self._asked() as docker, _gone_is_fine():
            image = response_checks.mapping(await docker.images.inspect(name))
            config = response_checks.mapping(image.get("Config") or {})
            response_checks.mapping(config.get("Labels") or {})
            response_checks.strings(config.get("Env") or [])
            response_checks.image_id(image.get("Id"))
            return image
        return None

    async def load(self, archive: AsyncIterable[bytes]) -> None:
        async with self._asked(patient=True) as docker:
            async for line in docker.images.import_image(archive, stream=True):
                if "error" in line:
                    raise Refused(500, str(line["error"]))

    async def import_tree(self, archive: bytes, repository: str, tag: str) -> None:
        """Import an image of one layer."""
        async with self._asked() as docker:
            params = {"fromSrc": "-", "repo": repository, "tag": tag}
            async with docker._query(
                "images/create",
                "POST",
                params=params,
                # As raw bytes, a large body would be sent in one go by the event loop.
                data=io.BytesIO(archive),
                headers={"Content-Type": "application/x-tar"},
            ) as response:
                await response.read()

    async def pull(self, name: str, report: Callable[[str, int, int], None]) -> None:
        """Pull an image. `report` gets a layer, its bytes so far and in total, and may raise."""
        async with self._asked(patient=True) as docker:
            async for line in docker.images.pull(name, stream=True):
                if "error" in line:
                    raise Refused(500, str(line["error"]))
                detail = line.get("progressDetail") or {}
                if line.get("status") == "Downloading" and detail.get("total"):
                    step = f"layer {one_line(str(line.get('id')), 64)}"
                    report(step, int(detail.get("current") or 0), int(detail["total"]))

    # ---- the connection

    async def aclose(self) -> None:
        await self._pulse.aclose()
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()
            # Both are ours, so the client leaves them open. TLS would wait for the peer's close.
            await docker.connector.close(abort_ssl=True)
            await docker.session.close()
        if self._tunnel is not None:
            await self._tunnel.aclose()

    @asynccontextmanager
    async def _asked(self, *, patient: bool = False) -> AsyncIterator[aiodocker.Docker]:
        """Yield the client for one request; any connection failure is raised as one class."""
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(None if patient else self._timeout_s):
                try:
                    docker = await self._connected()
                except BackendUnavailable as exc:
                    raise no_answer(self.address, exc.message, exc.hint) from exc
                yield docker
        except aiodocker.DockerError as exc:
            if exc.status == _UNREACHABLE:
                raise self._away(str(exc.message)) from exc
            raise Refused(int(exc.status), str(exc.message)) from exc
        except TimeoutError as exc:
            raise self._away(f"no answer within {self._timeout_s:g} s") from exc
        except (aiohttp.ClientError, OSError, EOFError) as exc:
            raise self._away(str(exc) or type(exc).__name__) from exc
        except (
            KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError
        ) as exc:  # fmt: skip
            raise self._away(f"invalid answer ({type(exc).__name__}: {exc})") from exc

    async def _connected(self) -> aiodocker.Docker:
        import aiodocker

        path = await self._tunnel.open() if self._tunnel is not None else self.address.path
        if self._docker is not None:
            return self._docker
        async with self._opening:
            if self._docker is None:
                from sandkasten.outgoing_http import new_http_session
                from sandkasten_docker.docker_engine.bounded_response import BoundedResponse

                connector, url = self._connector(path)
                session = new_http_session(connector, response_class=BoundedResponse)
                self._docker = aiodocker.Docker(url=url, connector=connector, session=session)
            return self._docker

    def _connector(self, path: str) -> tuple[aiohttp.BaseConnector, str]:
        import aiohttp

        # Streams into sandboxes stay open: their number must not block other requests.
        if self.address.kind != "tcp":
            return aiohttp.UnixConnector(path, limit=0), "unix://localhost"
        tls = self.address.tls
        scheme = "http" if tls is None else "https"
        context = False if tls is None else tls_context(tls, self.address.section)
        url = f"{scheme}://{_bracketed(self.address.host)}:{self.address.port}"
        return aiohttp.TCPConnector(ssl=context, limit=0), url

    def _away(self, why: str) -> BackendUnavailable:
        return no_answer(
            self.address,
            one_line(why),
            "check that dockerd runs there and that this user may connect to it; its sandboxes are "
            "available again when it answers",
        )


def tls_context(tls: Tls, section: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidConfiguration(
            f"the certificates for the Docker Engine cannot be read: {exc}",
            hint=f"check {section}.tls_ca, tls_cert and tls_key (or cert_path)",
            setting=f"{section}.tls_ca",
        ) from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def _gone_is_fine() -> AsyncIterator[None]:
    """Ignore the answer that something does not exist."""
    import aiodocker

    try:
        yield
    except aiodocker.DockerError as exc:
        if exc.status not in (_NOT_THERE, _NOT_MODIFIED):
            raise
