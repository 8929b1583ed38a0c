"""Stands a daemon on an engine, says how it stands, and takes it away.

Everything about it lies in volumes, so that a container can be replaced at any time: sandboxes are
containers of their own, and the next daemon finds them. Fails with the errors of `checks` before
anything is made, and with BackendUnavailable and the daemon's last words when it does not come up.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from sandkasten.backends.docker.engine.engine_host import EngineHost
from sandkasten.backends.docker.resource_names import CELL, LABEL, LABEL_OWNER, LABEL_VERSION
from sandkasten.daemon.container import container_readiness, up_checks
from sandkasten.daemon.container.container_removal import owner_of, take_down
from sandkasten.daemon.container.docker_commands import commands_of
from sandkasten.daemon.container.install_plan import (
    DATA_DIR,
    ENGINE_IMAGE,
    KEY_FILE,
    LABEL_MODE,
    LABEL_PLAN,
    NAME,
    REPOSITORY,
    SOCKET_INSIDE,
    STOP_S,
    Found,
    Wish,
    plan_of,
    url_of,
)
from sandkasten.daemon.container.small_tar import packed
from sandkasten.errors import BackendUnavailable
from sandkasten.model.installation_values import Drawn, Installed, Standing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.backends.docker.engine.engine_host import EngineFacts, HostedContainer
    from sandkasten.daemon.container.install_plan import Plan
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.model.installation_values import Begun, InstallationRequest, Removed

_POLL_S: Final = 0.3


@asynccontextmanager
async def installation(settings: Settings) -> AsyncIterator[Installation]:
    """On the engine that the settings (and so DOCKER_HOST) name."""
    if settings.docker.trouble is not None:
        raise settings.docker.trouble
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
        """BackendUnavailable when no engine was named and none is there."""
        if self._opened is None:
            self._opened = EngineHost(self._settings.docker.options)
        return self._opened

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    async def up(self, asked: InstallationRequest) -> Installed:
        plan_of(self._wish(asked, SOCKET_INSIDE), Found())
        host = self._host
        facts = await up_checks.check_engine(host)
        wish = self._wish(asked, host.socket)
        seen = await host.container(NAME)
        up_checks.check_name(seen)
        if seen is not None and seen.state == "running" and not asked.recreate:
            plan = plan_of(wish, up_checks.found_of(facts, host, wish.socket))
            await self._ready(asked.timeout_s)
            changed = seen.labels.get(LABEL_PLAN) != plan.mark
            return Installed(
                "running", _url(seen), seen.image, _mode(seen), host.machine, changed=changed
            )
        plan = await self._checked(wish, facts, seen)
        if seen is not None:
            # One that does not run has nothing that lies in no volume.
            await host.stop(NAME, STOP_S)
            await host.remove(NAME)
        key = await self._make(plan)
        try:
            await self._ready(asked.timeout_s)
        except BaseException:
            await asyncio.shield(self._give_up(plan, told=key is None))
            raise
        begun: Begun = "created" if seen is None else "replaced"
        return Installed(begun, plan.url, plan.image, plan.mode, host.machine, key)

    async def drawn(self, asked: InstallationRequest) -> Drawn:
        """What `up` would make. An engine that does not answer is taken for an ordinary one."""
        wish, found = self._wish(asked, SOCKET_INSIDE), Found()
        plan_of(wish, found)
        try:
            facts = await up_checks.check_engine(self._host)
            wish = self._wish(asked, self._host.socket)
            found = up_checks.found_of(facts, self._host, wish.socket)
        except BackendUnavailable as exc:
            engine = f"not asked: {exc.message}"
        else:
            engine = f"{self._host.address.shown}, Docker {facts.version}"
        plan = plan_of(wish, found)
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
            return Standing("absent", reason="there is no daemon", remedy="sandkasten up")
        up_checks.check_name(seen)
        told = container_readiness.Answer(False, f"the container is {seen.state}", "sandkasten up")
        if seen.state == "running":
            told = await container_readiness.ask(self._host)
        owner = await owner_of(self._host, seen)
        cells = (f"{LABEL}={CELL}", f"{LABEL_OWNER}={owner}")
        sandboxes = await self._host.labelled(*cells) if owner else ()
        return Standing(
            seen.state,
            ready=told.ready,
            reason=told.reason,
            remedy=told.remedy,
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

    def _wish(self, asked: InstallationRequest, socket: str) -> Wish:
        options, http = self._settings.docker.options, self._settings.http
        here = version("sandkasten")
        return Wish(
            image=asked.image or f"{REPOSITORY}:{here}",
            version=here,
            mode=asked.mode,
            host=http.host,
            port=http.port,
            socket=asked.socket or socket,
            workspace=options.workspace,
            engine_image=asked.engine_image or ENGINE_IMAGE,
            engine_host=asked.engine,
            certificates=up_checks.read_certificates(asked.engine_certs),
            env=asked.env,
        )

    async def _checked(self, wish: Wish, facts: EngineFacts, seen: HostedContainer | None) -> Plan:
        host = self._host
        user = await up_checks.check_image(
            host,
            wish.image,
            f"build it (make image) or fetch it (docker pull {wish.image}) on that engine, or "
            "name another with --image",
        )
        if wish.mode == "sidecar":
            await up_checks.check_image(
                host,
                wish.engine_image,
                f"docker pull {wish.engine_image} on that engine, or name another with "
                "--engine-image",
            )
        elif wish.mode == "docker_socket":
            up_checks.check_socket(host, wish.socket)
        await up_checks.check_port(host, wish, seen)
        plan = plan_of(wish, up_checks.found_of(facts, host, wish.socket, user))
        await up_checks.check_data(host, plan.user)
        return plan

    async def _make(self, plan: Plan) -> str | None:
        """The key, if one was made."""
        host, here = self._host, version("sandkasten")
        for volume in plan.volumes:
            labels = {LABEL: volume.kind, LABEL_VERSION: here, up_checks.LABEL_USER: str(plan.user)}
            await host.make_volume(volume.name, labels)
        for network in plan.networks:
            await host.make_network(network, {LABEL: "network", LABEL_VERSION: here})
        try:
            for before in plan.containers[:-1]:
                await host.remove(before.name)
                await host.create(before.name, before.body)
                await host.start(before.name)
            await host.create(NAME, plan.daemon.body)
            made = await self._give_files(plan)
            await host.start(NAME)
        except BaseException:
            # Half made it would be taken for one that stands.
            for one in plan.containers:
                await asyncio.shield(host.remove(one.name))
            raise
        return made

    async def _give_files(self, plan: Plan) -> str | None:
        files, made = dict(plan.daemon.files), None
        given = self._settings.http.api_key
        if given is None and not await self._host.read(NAME, KEY_FILE):
            given = made = f"sk-{secrets.token_urlsafe(32)}"
        if given is not None:
            files[KEY_FILE] = f"{given}\n".encode()
        if files:
            await self._put(plan, files)
        return made

    async def _put(self, plan: Plan, files: Mapping[str, bytes]) -> None:
        await self._host.put(NAME, DATA_DIR, packed(files, DATA_DIR, plan.user))

    async def _give_up(self, plan: Plan, *, told: bool) -> None:
        # It would start again and again; what it wrote stays to be read.
        await self._host.stop(NAME, STOP_S)
        if not told:
            # A key that nobody knows: the next `up` makes another.
            await self._put(plan, {KEY_FILE: b""})

    async def _ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        told = container_readiness.Answer(False)
        while time.monotonic() < deadline:
            seen = await self._host.container(NAME)
            if seen is None:
                raise BackendUnavailable(
                    "the daemon's container was taken away while it started",
                    hint="start it again: sandkasten up",
                )
            if seen.state in ("exited", "dead", "restarting"):
                told = container_readiness.Answer(False, "it ended")
                break
            told = await container_readiness.ask(self._host)
            if told.ready:
                return
            await asyncio.sleep(_POLL_S)
        logs = await self._host.logs(NAME)
        raise BackendUnavailable(
            f"the daemon did not become ready: {told.reason}",
            hint=told.remedy or f"all it wrote: docker logs {NAME}; then sandkasten up again",
            log=logs.splitlines(),
        )


def _url(seen: HostedContainer) -> str:
    return url_of(*seen.published[0]) if seen.published else ""


def _mode(seen: HostedContainer) -> str:
    return seen.labels.get(LABEL_MODE, "")
