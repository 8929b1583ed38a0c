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

from sandkasten.backends.docker.engine.engine_host import EngineHost
from sandkasten.backends.docker.resource_names import CELL, LABEL, LABEL_OWNER, LABEL_VERSION
from sandkasten.daemon.container import up_checks
from sandkasten.daemon.container.container_removal import owner_of, take_down
from sandkasten.daemon.container.docker_commands import commands_of
from sandkasten.daemon.container.install_plan import (
    DAEMON_SOCKET,
    DATA_DIR,
    ENGINE_IMAGE,
    KEY_FILE,
    LABEL_MODE,
    LABEL_PLAN,
    NAME,
    REPOSITORY,
    SOCKET_INSIDE,
    STOP_S,
    FoundEngine,
    InstallSpec,
    ModelAccess,
    plan_of,
    url_of,
)
from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.installation_values import Drawn, Installed, Standing
from sandkasten.model.optional_extras import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.backends.docker.engine.engine_host import EngineFacts, HostedContainer
    from sandkasten.daemon.container.install_plan import InstallPlan, User
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.model.installation_values import Begun, InstallationRequest, Removed

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
    made = Installation(settings)
    try:
        yield made
    finally:
        await made.aclose()


class Installation:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: EngineHost | None = None

    @property
    def _host(self) -> EngineHost:
        """Raise BackendUnavailable if no engine is set and none is found."""
        if self._opened is None:
            self._opened = EngineHost(self._settings.plugins["docker"])
        return self._opened

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    async def up(self, asked: InstallationRequest) -> Installed:
        plan_of(self._spec(asked, SOCKET_INSIDE), FoundEngine())
        host = self._host
        local = host.address.kind == "unix"
        facts = await up_checks.check_engine(host)
        spec = self._spec(asked, host.socket, local=local)
        notes = tuple(up_checks.notes_of(asked, self._models(), local=local))
        seen = await host.container(NAME)
        up_checks.check_name(seen)
        if seen is not None and seen.state == "running" and not asked.recreate:
            plan = plan_of(spec, up_checks.found_of(facts, host, spec.socket))
            await self._ready(asked.timeout_s)
            changed = seen.labels.get(LABEL_PLAN) != plan.mark
            return Installed(
                "running",
                _url(seen),
                seen.image,
                _mode(seen),
                host.machine,
                changed=changed,
                notes=notes,
            )
        plan = await self._checked(spec, facts, seen)
        if seen is not None:
            # A stopped container holds no state outside its volumes.
            await host.stop(NAME, STOP_S)
            await host.remove(NAME)
        key = await self._make(plan)
        try:
            await self._ready(asked.timeout_s)
        except BaseException:
            await asyncio.shield(self._give_up(plan, key_shown=key is None))
            raise
        begun: Begun = "created" if seen is None else "replaced"
        return Installed(begun, plan.url, plan.image, plan.mode, host.machine, key, notes=notes)

    async def drawn(self, asked: InstallationRequest) -> Drawn:
        """Return what `up` would create, also if the engine cannot be reached."""
        spec, found = self._spec(asked, SOCKET_INSIDE), FoundEngine()
        plan_of(spec, found)
        try:
            facts = await up_checks.check_engine(self._host)
            local = self._host.address.kind == "unix"
            spec = self._spec(asked, self._host.socket, local=local)
            found = up_checks.found_of(facts, self._host, spec.socket)
        except BackendUnavailable as exc:
            engine = f"not reachable: {exc.message}"
        else:
            engine = f"{self._host.address.shown}, Docker {facts.version}"
        plan = plan_of(spec, found)
        document = {
            "engine": engine,
            "mode": plan.mode,
            "url": plan.url,
            "volumes": [{"name": one.name, "labels": {LABEL: one.kind}} for one in plan.volumes],
            "networks": list(plan.networks),
            "containers": [
                {"name": one.name, "files": sorted(one.files), "config": one.body}
                for one in plan.containers
            ],
        }
        return Drawn(document, commands_of(plan))

    async def status(self) -> Standing:
        await up_checks.check_engine(self._host)
        seen = await self._host.container(NAME)
        if seen is None:
            return Standing("absent", reason="no daemon is installed", remedy="sandkasten up")
        up_checks.check_name(seen)
        readiness = ContainerReadiness(False, f"the container is {seen.state}", "sandkasten up")
        if seen.state == "running":
            readiness = await _readiness(self._host)
        owner = await owner_of(self._host, seen)
        cells = (f"{LABEL}={CELL}", f"{LABEL_OWNER}={owner}")
        sandboxes = await self._host.labelled(*cells) if owner else ()
        return Standing(
            seen.state,
            ready=readiness.ready,
            reason=readiness.reason,
            remedy=readiness.remedy,
            url=_url(seen),
            image=seen.image,
            mode=_mode(seen),
            version=seen.labels.get(LABEL_VERSION, ""),
            started_at=seen.started_at,
            sandboxes=len(sandboxes),
        )

    async def down(self, *, keep_sessions: bool, volumes: bool) -> Removed:
        await up_checks.check_engine(self._host)
        up_checks.check_name(await self._host.container(NAME))
        return await take_down(self._host, keep_sessions=keep_sessions, volumes=volumes)

    # ---- the steps of up

    def _models(self) -> ModelAccess | None:
        rules = self._settings.agents
        if rules.base_url is None:
            return None
        return ModelAccess(rules.base_url, rules.model or "", rules.api_key or "")

    def _spec(
        self, asked: InstallationRequest, socket: str, *, local: bool | None = None
    ) -> InstallSpec:
        """`local` says whether the engine is on this machine; None: that is not known yet."""
        options, http = self._settings.plugins["docker"], self._settings.http
        models = self._models()
        agents = workflows = ""
        if local is not None:
            agents = up_checks.definitions(asked.agents, "agents", local=local)
            workflows = up_checks.definitions(asked.workflows, "workflows", local=local)
        return InstallSpec(
            image=asked.image or f"{REPOSITORY}:{VERSION}",
            version=VERSION,
            mode=asked.mode,
            host=http.host,
            port=http.port,
            socket=asked.socket or socket,
            workspace=options.workspace,
            engine_image=asked.engine_image or ENGINE_IMAGE,
            engine_host=asked.engine,
            certificates=up_checks.read_certificates(asked.engine_certs),
            agents=agents,
            workflows=workflows,
            models=models if models and up_checks.reachable(models.base_url) else None,
            env=asked.env,
        )

    async def _checked(
        self, spec: InstallSpec, facts: EngineFacts, seen: HostedContainer | None
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
                spec.engine_image,
                f"docker pull {spec.engine_image} on that Docker Engine, or pass another with "
                "--engine-image",
            )
        elif spec.mode == "docker_socket":
            up_checks.check_socket(host, spec.socket)
        await up_checks.check_port(host, spec, seen)
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
            made = await self._give_files(plan)
            await host.start(NAME)
        except BaseException:
            # A half-created container would be taken for an installed one.
            for one in plan.containers:
                await asyncio.shield(host.remove(one.name))
            raise
        return made

    async def _give_files(self, plan: InstallPlan) -> str | None:
        files, made = dict(plan.daemon.files), None
        given = self._settings.http.api_key
        if given is None and not await self._host.read(NAME, KEY_FILE):
            given = made = f"sk-{secrets.token_urlsafe(32)}"
        if given is not None:
            files[KEY_FILE] = f"{given}\n".encode()
        if files:
            await self._put(plan, files)
        return made

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
            seen = await self._host.container(NAME)
            if seen is None:
                raise BackendUnavailable(
                    "the daemon's container was removed while it started",
                    hint="run sandkasten up again",
                )
            if seen.state in ("exited", "dead", "restarting"):
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


def _url(seen: HostedContainer) -> str:
    return url_of(*seen.published[0]) if seen.published else ""


def _mode(seen: HostedContainer) -> str:
    return seen.labels.get(LABEL_MODE, "")


async def _readiness(host: EngineHost) -> ContainerReadiness:
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
        made: set[str] = set()
        for path, content in sorted(files.items()):
            name = posixpath.relpath(path, below)
            directory = posixpath.dirname(name)
            if directory and directory not in made:
                made.add(directory)
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
