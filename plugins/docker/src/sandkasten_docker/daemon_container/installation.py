"""The daemon as a container on an engine: install it, report its status, remove it.

All its state is in volumes, so the container can be replaced at any time; sandboxes are containers
of their own, and the next daemon finds them. `up` fails with the errors of `up_checks` before it
creates anything, and with BackendUnavailable and the last log lines if the daemon does not start.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import secrets
import tarfile
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import VERSION
from sandkasten_docker.daemon_container import up_checks
from sandkasten_docker.daemon_container.container_removal import owner_of, take_down
from sandkasten_docker.daemon_container.docker_commands import commands_of
from sandkasten_docker.daemon_container.install_plan import (
    DAEMON_SOCKET,
    DATA_DIR,
    DOCKER_ENGINE_IMAGE,
    KEY_FILE,
    LABEL_MODE,
    LABEL_PLAN,
    NAME,
    REPOSITORY,
    SOCKET_INSIDE,
    STOP_S,
    FoundDockerEngine,
    InstallSpec,
    ModelAccess,
    plan_of,
    url_of,
)
from sandkasten_docker.daemon_container.installation_values import Drawn, Installed, Standing
from sandkasten_docker.docker_engine.docker_host import DockerHost
from sandkasten_docker.resource_names import CELL, LABEL, LABEL_OWNER, LABEL_VERSION
from sandkasten_server.daemon.settings.http_settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten_docker.daemon_container.install_plan import InstallPlan, User
    from sandkasten_docker.daemon_container.installation_values import (
        Begun,
        InstallationRequest,
        Removed,
    )
    from sandkasten_docker.docker_engine.docker_host import DockerFacts, HostedContainer
    from sandkasten_runtime.assembly.settings.resolver import Settings

_POLL_S: Final = 0.3
_ASK_S: Final = 15.0
_PROBE: Final = """\
import http.client, socket, sys
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(sys.argv[1])
connection = Connection("localhost")
try:
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    print(answer.read(65536).decode(errors="replace"))
except OSError:
    sys.exit(2)
sys.exit(answer.status != 200)
"""
_COMMAND: Final = ("python3", "-I", "-S", "-c", _PROBE, DAEMON_SOCKET.removeprefix("unix://"))


@dataclass(frozen=True, slots=True)
class ContainerReadiness:
    ready: bool
    reason: str = ""
    remedy: str = ""


@asynccontextmanager
async def installation(settings: Settings) -> AsyncIterator[Installation]:
    """Open the installation on the engine of the settings (and so of DOCKER_HOST)."""
    trouble = settings.plugins["docker"].trouble
    if trouble is not None:
        raise trouble
    installer = Installation(settings)
    try:
        yield installer
    finally:
        await installer.aclose()


class Installation:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: DockerHost | None = None

    @property
    def _host(self) -> DockerHost:
        """Raise BackendUnavailable if no engine is set and none is found."""
        if self._opened is None:
            self._opened = DockerHost(self._settings.plugins["docker"])
        return self._opened

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    async def up(self, request: InstallationRequest) -> Installed:
        plan_of(self._spec(request, SOCKET_INSIDE), FoundDockerEngine())
        host = self._host
        local = host.address.kind == "unix"
        facts = await up_checks.check_docker(host)
        spec = self._spec(request, host.socket, local=local)
        notes = tuple(up_checks.notes_of(request, self._models(), local=local))
        container = await host.container(NAME)
        up_checks.check_name(container)
        if container is not None and container.state == "running" and not request.recreate:
            plan = plan_of(spec, up_checks.found_of(facts, host, spec.socket))
            await self._ready(request.timeout_s)
            changed = container.labels.get(LABEL_PLAN) != plan.mark
            return Installed(
                "running",
                _url(container),
                container.image,
                _mode(container),
                host.machine,
                changed=changed,
                notes=notes,
            )
        plan = await self._checked(spec, facts, container)
        if container is not None:
            # A stopped container holds no state outside its volumes.
            await host.stop(NAME, STOP_S)
            await host.remove(NAME)
        key = await self._make(plan)
        try:
            await self._ready(request.timeout_s)
        except BaseException:
            await asyncio.shield(self._give_up(plan, key_shown=key is None))
            raise
        outcome: Begun = "created" if container is None else "replaced"
        return Installed(outcome, plan.url, plan.image, plan.mode, host.machine, key, notes=notes)

    async def drawn(self, request: InstallationRequest) -> Drawn:
        """Return what `up` would create, also if the engine cannot be reached."""
        spec, docker_engine = self._spec(request, SOCKET_INSIDE), FoundDockerEngine()
        plan_of(spec, docker_engine)
        try:
            facts = await up_checks.check_docker(self._host)
            local = self._host.address.kind == "unix"
            spec = self._spec(request, self._host.socket, local=local)
            docker_engine = up_checks.found_of(facts, self._host, spec.socket)
        except BackendUnavailable as exc:
            address = f"not reachable: {exc.message}"
        else:
            address = f"{self._host.address.shown}, Docker {facts.version}"
        plan = plan_of(spec, docker_engine)
        document = {
            "engine": address,
            "mode": plan.mode,
            "url": plan.url,
            "volumes": [
                {"name": volume.name, "labels": {LABEL: volume.kind}} for volume in plan.volumes
            ],
            "networks": list(plan.networks),
            "containers": [
                {"name": container.name, "files": sorted(container.files), "config": container.body}
                for container in plan.containers
            ],
        }
        return Drawn(document, commands_of(plan))

    async def status(self) -> Standing:
        await up_checks.check_docker(self._host)
        container = await self._host.container(NAME)
        if container is None:
            return Standing("absent", reason="no daemon is installed", remedy="sandkasten up")
        up_checks.check_name(container)
        readiness = ContainerReadiness(
            False, f"the container is {container.state}", "sandkasten up"
        )
        if container.state == "running":
            readiness = await _readiness(self._host)
        owner = await owner_of(self._host, container)
        cells = (f"{LABEL}={CELL}", f"{LABEL_OWNER}={owner}")
        sandboxes = await self._host.labelled(*cells) if owner else ()
        return Standing(
            container.state,
            ready=readiness.ready,
            reason=readiness.reason,
            remedy=readiness.remedy,
            url=_url(container),
            image=container.image,
            mode=_mode(container),
            version=container.labels.get(LABEL_VERSION, ""),
            started_at=container.started_at,
            sandboxes=len(sandboxes),
        )

    async def down(self, *, keep_sessions: bool, volumes: bool) -> Removed:
        await up_checks.check_docker(self._host)
        up_checks.check_name(await self._host.container(NAME))
        return await take_down(self._host, keep_sessions=keep_sessions, volumes=volumes)

    # ---- the steps of up

    def _models(self) -> ModelAccess | None:
        named = self._settings.named
        base_url = named("models.base_url")
        if base_url is None:
            return None
        return ModelAccess(base_url, named("models.default") or "", named("models.api_key") or "")

    def _spec(
        self, request: InstallationRequest, socket: str, *, local: bool | None = None
    ) -> InstallSpec:
        """`local`: whether the engine is on this machine; None: that is not known yet."""
        options, http = self._settings.plugins["docker"], self._settings.of(HttpSettings)
        models = self._models()
        agents = workflows = ""
        if local is not None:
            agents = up_checks.definitions(request.agents, "agents", local=local)
            workflows = up_checks.definitions(request.workflows, "workflows", local=local)
        return InstallSpec(
            image=request.image or f"{REPOSITORY}:{VERSION}",
            version=VERSION,
            mode=request.mode,
            host=http.host,
            port=http.port,
            socket=request.socket or socket,
            workspace=options.workspace,
            docker_engine_image=request.docker_engine_image or DOCKER_ENGINE_IMAGE,
            docker_host=request.docker_host,
            certificates=up_checks.read_certificates(request.docker_certs),
            agents=agents,
            workflows=workflows,
            models=models if models and up_checks.reachable(models.base_url) else None,
            env=request.env,
        )

    async def _checked(
        self, spec: InstallSpec, facts: DockerFacts, container: HostedContainer | None
    ) -> InstallPlan:
        host = self._host
        user = await up_checks.check_image(
            host,
            spec.image,
            "it is published nowhere: build it on that Docker Engine with make image in a checkout "
            "(DOCKER_HOST names the Docker Engine), load it there with docker load, or pass "
            "another with --image",
        )
        if spec.mode == "sidecar":
            await up_checks.check_image(
                host,
                spec.docker_engine_image,
                f"docker pull {spec.docker_engine_image} on that Docker Engine, or pass another "
                "with --engine-image",
            )
        elif spec.mode == "docker_socket":
            up_checks.check_socket(host, spec.socket)
        await up_checks.check_port(host, spec, container)
        plan = plan_of(spec, up_checks.found_of(facts, host, spec.socket, user))
        await up_checks.check_data(host, plan.user)
        return plan

    async def _make(self, plan: InstallPlan) -> str | None:
        """Create everything and start it; return the key if one was generated."""
        host = self._host
        for volume in plan.volumes:
            labels = {
                LABEL: volume.kind,
                LABEL_VERSION: VERSION,
                up_checks.LABEL_USER: str(plan.user),
            }
            await host.make_volume(volume.name, labels)
        for network in plan.networks:
            await host.make_network(network, {LABEL: "network", LABEL_VERSION: VERSION})
        try:
            for before in plan.containers[:-1]:
                await host.remove(before.name)
                await host.create(before.name, before.body)
                await host.start(before.name)
            await host.create(NAME, plan.daemon.body)
            key = await self._give_files(plan)
            await host.start(NAME)
        except BaseException:
            # A half-created container would be taken for an installed one.
            for container in plan.containers:
                await asyncio.shield(host.remove(container.name))
            raise
        return key

    async def _give_files(self, plan: InstallPlan) -> str | None:
        files, new_key = dict(plan.daemon.files), None
        key = self._settings.of(HttpSettings).api_key
        if key is None and not await self._host.read(NAME, KEY_FILE):
            key = new_key = f"sk-{secrets.token_urlsafe(32)}"
        if key is not None:
            files[KEY_FILE] = f"{key}\n".encode()
        if files:
            await self._put(plan, files)
        return new_key

    async def _put(self, plan: InstallPlan, files: Mapping[str, bytes]) -> None:
        await self._host.put(NAME, DATA_DIR, packed(files, DATA_DIR, plan.user))

    async def _give_up(self, plan: InstallPlan, *, key_shown: bool) -> None:
        # Stop it, or the engine restarts it again and again; its log stays.
        await self._host.stop(NAME, STOP_S)
        if not key_shown:
            # The key was never printed: let the next `up` generate another.
            await self._put(plan, {KEY_FILE: b""})

    async def _ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        readiness = ContainerReadiness(False)
        while time.monotonic() < deadline:
            container = await self._host.container(NAME)
            if container is None:
                raise BackendUnavailable(
                    "the daemon's container was removed while it started",
                    hint="run sandkasten up again",
                )
            if container.state in ("exited", "dead", "restarting"):
                readiness = ContainerReadiness(False, "it exited")
                break
            readiness = await _readiness(self._host)
            if readiness.ready:
                return
            await asyncio.sleep(_POLL_S)
        logs = await self._host.logs(NAME)
        raise BackendUnavailable(
            f"the daemon did not become ready: {readiness.reason}",
            hint=readiness.remedy or f"read docker logs {NAME}, then run sandkasten up again",
            log=logs.splitlines(),
        )


def _url(container: HostedContainer) -> str:
    return url_of(*container.published[0]) if container.published else ""


def _mode(container: HostedContainer) -> str:
    return container.labels.get(LABEL_MODE, "")


async def _readiness(host: DockerHost) -> ContainerReadiness:
    """Ask the daemon from inside its container, by its Unix socket.

    The published address may belong to another machine. Needs only `python3` in the image.
    """
    output = await host.ask(NAME, _COMMAND, _ASK_S)
    if output is not None and output.status == 0:
        return ContainerReadiness(True)
    try:
        problem = json.loads(output.text) if output is not None else {}
    except ValueError:
        problem = {}
    if not isinstance(problem, dict) or "message" not in problem:
        return ContainerReadiness(False, "it does not respond")
    return ContainerReadiness(False, str(problem["message"])[:600], str(problem.get("hint") or ""))


def packed(files: Mapping[str, bytes], below: str, user: User) -> bytes:
    """Pack `files`, given by absolute path, as a tar for `below`; only `user` can read them."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        added: set[str] = set()
        for path, content in sorted(files.items()):
            name = posixpath.relpath(path, below)
            directory = posixpath.dirname(name)
            if directory and directory not in added:
                added.add(directory)
                archive.addfile(_member(directory, user, tarfile.DIRTYPE, 0o700))
            member = _member(name, user, tarfile.REGTYPE, 0o600)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _member(name: str, user: User, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, mode
    member.uid, member.gid = user.uid, user.gid
    return member
