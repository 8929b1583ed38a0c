"""The control plane of E2B: create, connect, list, describe, pause, resume, end.

Sandboxes of every origin appear here: one that another client of the tenant created is listed and
can be connected to. `timeout` counts from the request, whatever happens in the sandbox, so it is
the lifetime; the idle time never ends a sandbox earlier.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response

from sandkasten.api.response.json_response import answer
from sandkasten.compat.e2b.e2b_domain import told_domain, told_id
from sandkasten.compat.e2b.e2b_messages import (
    Create,
    ListQuery,
    MetricsQuery,
    Network,
    Refresh,
    Timeout,
)
from sandkasten.compat.e2b.pause_schedule import PauseTime
from sandkasten.compat.e2b.sandbox_page import page_of, started_after
from sandkasten.compat.e2b.snapshot_store import fill, find
from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    RegistryUnavailable,
    SandkastenError,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.access.preview_links import SandboxPreviews
from sandkasten.model.field_patterns import form
from sandkasten.model.ids import sandbox_id
from sandkasten.model.json_codec import iso
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Info, UpdateRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.api.request.http_call import Call
    from sandkasten.compat.e2b.envd_tokens import EnvdTokens
    from sandkasten.compat.e2b.pause_schedule import PauseSchedule
    from sandkasten.compat.e2b.snapshot_store import Snapshot
    from sandkasten.model.sandbox.sandbox_values import Stats

# Unlocks every feature of the SDKs that is implemented here.
ENVD_VERSION: Final = "0.6.4"
NEXT_TOKEN: Final = "X-Next-Token"  # noqa: S105  (the name of a header)
# What E2B's SDKs name where a program names no template.
DEFAULT_TEMPLATES: Final = frozenset({"base", "code-interpreter-v1"})
_ALL_TRAFFIC: Final = frozenset({"0.0.0.0/0", "::/0"})
_ENDING: Final = frozenset({"destroying", "lost"})
_CLIENT: Final = "sandkasten"
_MIB: Final = 1024 * 1024
_HOST: Final = form(r"[A-Za-z0-9._:${}\[\]-]{1,255}")
_SAMPLE_S: Final = 0.1
# Clients ask for a range up to now, in whole seconds and by their own clock.
_SLACK_S: Final = 60


class SandboxRoutes:
    """The handlers. `domain` is told to clients, which build the addresses of ports from it."""

    def __init__(
        self,
        tokens: EnvdTokens,
        aliases: Mapping[str, str],
        domain: str | None,
        pauses: PauseSchedule,
        *,
        public_ports: bool = False,
        profile: str = "hardened",
    ) -> None:
        self._tokens = tokens
        self._aliases = aliases
        self._domain = domain
        self._pauses = pauses
        self._public_ports = public_ports
        self._profile = profile

    async def create(self, call: Call) -> Response:
        body = await call.body(Create)
        _refuse_unsupported(body)
        template = body.templateID
        timeout_s = float(max(1, body.timeout))
        options = SandboxOptions(
            idle_timeout_seconds=timeout_s,
            lifetime_seconds=timeout_s,
            env=body.envVars or {},
            labels=body.metadata or {},
            network=_network(body.network, body.allow_internet_access),
            profile=self._profile,
        )
        known = template in DEFAULT_TEMPLATES or template in self._aliases
        snapshot = None if known else await find(call, template)
        try:
            if snapshot is not None:
                made = self._filled(call, snapshot, options, body)
            else:
                options = replace(options, image=await self._image(call, template))
                made = self._made(call, options, body, _session_key(call))
            info = await call.while_there(made)
        except InvalidImage as exc:
            raise ImageNotFound(
                f"template {template[:100]!r} not found: {exc.message}",
                hint="a template is an image or a snapshot here: sandkasten image ls shows images, "
                "and images.aliases gives one another name",
            ) from exc
        except RegistryUnavailable as exc:
            raise RegistryUnavailable(
                f"template {template[:100]!r} not found: {exc.message}",
                hint=exc.hint,
                **exc.details,
            ) from exc
        return answer(self.created(call, info, template), 201)

    async def fill_new(
        self, call: Call, snapshot: Snapshot, source: Info, timeout_s: float
    ) -> Info:
        """Create a sandbox with the files of a snapshot, and labels and network of its source."""
        options = SandboxOptions(
            idle_timeout_seconds=timeout_s,
            lifetime_seconds=timeout_s,
            labels=source.labels,
            network=source.network,
        )
        return await self._filled(call, snapshot, options, None)

    async def _filled(
        self, call: Call, snapshot: Snapshot, options: SandboxOptions, body: Create | None
    ) -> Info:
        options = replace(
            options, image=snapshot.image, profile=snapshot.profile, limits=snapshot.limits
        )
        # Without the idempotency key: a repeated request must not find a sandbox without files.
        info = await self._made(call, options, body, None)
        async with _kept_only_if_done(call, info):
            await fill(call, snapshot, info)
        return info

    async def _made(
        self, call: Call, options: SandboxOptions, body: Create | None, session_key: str | None
    ) -> Info:
        request = CreateRequest(
            options,
            session_key=session_key,
            tenant=call.principal.tenant,
            key_id=call.principal.key_id,
        )
        info = await call.engine.create(request, call.principal.quota)
        if body is None or not info.created:
            return info
        async with _kept_only_if_done(call, info):
            await self._open_ports(call, info, body.network)
            if not body.autoPause:
                return info
            # Where pausing is not supported this fails, and else it does nothing.
            await call.engine.resume(info.id)
            wakes = body.autoResume is not None and body.autoResume.enabled
            at = call.server.clock.now() + max(1, body.timeout)
            await self._pauses.put(info.id, PauseTime(at, body.timeout, wakes))
            most = call.engine.policy.lifetime_s
            return await _update(call, info.id, lifetime_seconds=most, idle_timeout_seconds=most)

    async def _open_ports(self, call: Call, info: Info, network: Network | None) -> None:
        """Set what the request says about ports: whether they are public, and the Host to send."""
        public = None if network is None else network.allowPublicTraffic
        host = None if network is None else network.maskRequestHost
        previews = call.server.previews
        if public is None and previews is not None and previews.rules.allow_public:
            public = self._public_ports or None
        if public is None and host is None:
            return
        if previews is None:
            name = "maskRequestHost" if public is None else "allowPublicTraffic"
            raise _unsupported(f"network.{name}")
        if host is not None and not _HOST.match(host):
            raise InvalidRequest(
                f"{host[:80]!r} is not a valid host",
                hint="write a host, for example localhost:${PORT}",
                field="network.maskRequestHost",
            )
        await previews.set_rules_of(sandbox_id(info.id), SandboxPreviews(public, host))

    async def _image(self, call: Call, template: str) -> str | None:
        """Return the image of a template; None: the operator's default."""
        if template not in DEFAULT_TEMPLATES or template in self._aliases:
            return template
        # `base` may also be the alias of an image in the store.
        try:
            await call.engine.images.inspect(template)
        except (ImageNotFound, UnsupportedByBackend):
            return None
        return template

    async def connect(self, call: Call) -> Response:
        the_id = await call.session()
        timeout = (await call.body(Timeout)).timeout
        info = await self.living(call, the_id)
        if info.status == "paused":
            return await self._resumed(call, info, timeout)
        # Connecting never shortens the time that is left.
        if call.server.clock.now() + timeout > self._ends_at(info):
            info = await self._end_after(call, info, timeout)
        return answer(self.created(call, info, info.image))

    async def resume(self, call: Call) -> Response:
        the_id = await call.session()
        timeout = (await call.body(Timeout)).timeout
        info = await self.living(call, the_id)
        if info.status != "paused":
            raise Conflict(f"sandbox {the_id} is not paused", hint="connect to it instead")
        return await self._resumed(call, info, timeout)

    async def describe(self, call: Call) -> Response:
        info = await self.living(call, await call.session())
        pause = self._pauses.get(info.id)
        return answer(
            {
                **self._listed(call, info),
                "envdAccessToken": self._tokens.token(info.id),
                "domain": told_domain(call) or self._domain,
                "allowInternetAccess": info.network != "none",
                "lifecycle": {
                    "autoResume": pause is not None and pause.wakes,
                    "onTimeout": "kill" if pause is None else "pause",
                },
            }
        )

    async def listed(self, call: Call) -> Response:
        query = call.query(ListQuery)
        states = [one for one in (query.state or "").split(",") if one]
        wanted = {
            # The Python SDK quotes names and values twice.
            unquote(name): (value, unquote(value))
            for name, value in parse_qsl(query.metadata or "", keep_blank_values=True)
        }
        after = started_after(query.startedAfter)
        found = [
            one
            for one in await call.engine.list(tenant=call.principal.tenant)
            if one.status not in _ENDING
            and _state(one) in (states or ("running", "paused"))
            and all(one.labels.get(name) in values for name, values in wanted.items())
            and (after is None or round(one.created_at, 3) >= after)
            and query.template in (None, one.image)
        ]
        page, following = page_of(
            found, query.limit, query.nextToken, newest_first=query.order != "asc"
        )
        headers = None if following is None else {NEXT_TOKEN: following}
        return answer([self._listed(call, one) for one in page], headers=headers)

    async def destroy(self, call: Call) -> Response:
        await call.engine.destroy(await call.session())
        return Response(status_code=204)

    async def set_timeout(self, call: Call) -> Response:
        the_id = await call.session()
        timeout = (await call.body(Timeout)).timeout
        await self._end_after(call, await self.living(call, the_id), timeout)
        return Response(status_code=204)

    async def refresh(self, call: Call) -> Response:
        the_id = await call.session()
        duration = (await call.body(Refresh)).duration
        await self._end_after(call, await self.living(call, the_id), duration)
        return Response(status_code=204)

    async def pause(self, call: Call) -> Response:
        the_id = await call.session()
        info = await self.living(call, the_id)
        if info.status == "paused":
            raise Conflict(f"sandbox {the_id} is already paused", hint="connect resumes it")
        # A paused sandbox waits for its next connect as long as the operator permits.
        most = call.engine.policy.lifetime_s
        await _update(call, the_id, lifetime_seconds=most, idle_timeout_seconds=most)
        try:
            await call.engine.pause(the_id)
        except SandkastenError:
            # It still runs, and must end when it would have ended.
            before = {"lifetime_seconds": info.lifetime_s}
            await _update(call, the_id, **before, idle_timeout_seconds=info.idle_timeout_s)
            raise
        return Response(status_code=204)

    async def metrics(self, call: Call) -> Response:
        the_id = await call.session()
        asked = call.query(MetricsQuery)
        now = call.server.clock.now()
        if (asked.end is not None and asked.end + _SLACK_S < now) or (asked.start or 0) > now:
            # Nothing is recorded; a sample is taken for a range that includes the present.
            return answer([])
        before = await call.engine.usage(the_id)
        await asyncio.sleep(_SAMPLE_S)
        info, stats = await self.living(call, the_id), await call.engine.stats(the_id)
        used_usec = (stats.usage.cpu_usec or 0) - (before.cpu_usec or 0)
        share = max(0.0, used_usec / 1e6 / _SAMPLE_S)
        return answer([_sample(info, stats, share, call.server.clock.now())])

    async def change_network(self, call: Call) -> Response:
        the_id = await call.session()
        body = await call.body(Network)
        if body.maskRequestHost:
            raise _unsupported("network.maskRequestHost of a sandbox that runs")
        network = _network(body, body.allow_internet_access)
        await _update(call, the_id, network="none" if network is None else network)
        return Response(status_code=204)

    async def _resumed(self, call: Call, info: Info, seconds: int) -> Response:
        # Check first: the pause gave the sandbox the longest lifetime, and it runs when resumed.
        _lifetime_s(call, info, seconds)
        if self._pauses.get(info.id) is not None:
            # Before it runs: its time to pause is over, and it would be paused again.
            await self._end_after(call, info, seconds)
            info = await call.engine.resume(info.id)
        else:
            await call.engine.resume(info.id)
            info = await self._end_after(call, info, seconds)
        return answer(self.created(call, info, info.image), 201)

    async def _end_after(self, call: Call, info: Info, seconds: int) -> Info:
        lifetime_s = _lifetime_s(call, info, seconds)
        pause = self._pauses.get(info.id)
        if pause is not None:
            at = call.server.clock.now() + seconds
            await self._pauses.put(info.id, replace(pause, at=at, timeout_s=max(1, seconds)))
            return info
        return await _update(
            call,
            info.id,
            lifetime_seconds=lifetime_s,
            idle_timeout_seconds=float(max(1, seconds)),
        )

    def _ends_at(self, info: Info) -> float:
        """Return when a sandbox ends or pauses by itself, in Unix seconds."""
        pause = self._pauses.get(info.id)
        return info.created_at + info.lifetime_s if pause is None else pause.at

    async def living(self, call: Call, the_id: str) -> Info:
        """Return a sandbox. One that is being removed is gone for the SDKs."""
        info = await call.engine.get(the_id)
        if info.status in _ENDING:
            raise SessionNotFound(f"sandbox {the_id} is {info.status}", hint="create a new one")
        return await self._pauses.settle(call.engine, info, call.server.clock.now())

    def _listed(self, call: Call, info: Info) -> dict[str, object]:
        limits = info.limits
        pause = self._pauses.get(info.id)
        ends_at = min(info.expires_at, self._ends_at(info)) if pause is None else pause.at
        return {
            "templateID": info.image,
            "sandboxID": told_id(call, info),
            "clientID": _CLIENT,
            "startedAt": iso(info.created_at),
            "endAt": iso(ends_at),
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_bytes // _MIB,
            "diskSizeMB": limits.workspace_bytes // _MIB,
            "state": _state(info),
            "envdVersion": ENVD_VERSION,
            "metadata": dict(info.labels),
        }

    def created(self, call: Call, info: Info, template: str) -> dict[str, object]:
        return {
            "templateID": template,
            "sandboxID": told_id(call, info),
            "clientID": _CLIENT,
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self._tokens.token(info.id),
            "trafficAccessToken": self._tokens.traffic_token(info.id),
            "domain": told_domain(call) or self._domain,
        }


def _lifetime_s(call: Call, info: Info, seconds: int) -> float:
    """Return the lifetime of a sandbox that ends in `seconds`."""
    lifetime_s = max(0.0, call.server.clock.now() - info.created_at) + max(1, seconds)
    most = call.engine.policy.lifetime_s
    if lifetime_s > most:
        raise InvalidRequest(
            f"a timeout of {seconds} s would keep the sandbox for {lifetime_s:.0f} s",
            hint=f"at most {most:g} s after its creation; session_max_lifetime_seconds bounds it",
            field="timeout",
        )
    return lifetime_s


@asynccontextmanager
async def _kept_only_if_done(call: Call, info: Info) -> AsyncIterator[None]:
    """Destroy a new sandbox if the block that prepares it fails or is cancelled."""
    try:
        yield
    except BaseException:
        with suppress(SandkastenError):
            await finish(call.engine.destroy(info.id))
        raise


def _session_key(call: Call) -> str | None:
    key = call.connection.headers.get("idempotency-key")
    return None if key is None else f"e2b/{key[:200]}"


async def _update(call: Call, the_id: str, **changes: Any) -> Info:
    request = UpdateRequest(**changes, key_id=call.principal.key_id)
    return await call.engine.update(the_id, request, call.principal.quota)


def _state(info: Info) -> str:
    return "paused" if info.status == "paused" else "running"


def _sample(info: Info, stats: Stats, cpu_share: float, now: float) -> dict[str, object]:
    disk = stats.disk[0] if stats.disk else None
    return {
        "timestamp": iso(now),
        "timestampUnix": int(now),
        "cpuCount": max(1, round(info.limits.cpus)),
        "cpuUsedPct": round(cpu_share * 100, 2),
        "memUsed": stats.usage.memory_bytes or 0,
        "memTotal": info.limits.memory_bytes,
        "memCache": 0,
        "diskUsed": 0 if disk is None else disk.used_bytes,
        "diskTotal": info.limits.workspace_bytes if disk is None else disk.total_bytes,
    }


def _refuse_unsupported(body: Create) -> None:
    resumes = body.autoResume is not None and body.autoResume.enabled
    for name, used in (
        ("autoResume without autoPause", resumes and not body.autoPause),
        ("iam", body.iam),
        ("volumeMounts", body.volumeMounts),
    ):
        if used:
            raise _unsupported(name)


def _network(network: Network | None, internet: bool | None) -> str | dict[str, list[str]] | None:
    """Return the network of a request; None: the operator's default."""
    if network is not None:
        for name in ("dnsServers", "egressProxy", "rules"):
            if getattr(network, name):
                raise _unsupported(f"network.{name}")
    if internet is False:
        return "none"
    allow = [] if network is None else list(network.allowOut or [])
    deny = [] if network is None else list(network.denyOut or [])
    closed = any(one in _ALL_TRAFFIC for one in deny)
    deny = [one for one in deny if one not in _ALL_TRAFFIC]
    if any(one in _ALL_TRAFFIC for one in allow):
        allow = ["*"]
    if allow:
        return {"allow": allow, "deny": deny}
    if closed:
        return "none"
    if deny:
        return {"allow": ["*"], "deny": deny}
    return "full" if internet else None


def _unsupported(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not supported by this server", hint="leave it out", field=name
    )
