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

from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    NotFound,
    RegistryUnavailable,
    SandkastenError,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.access.preview_links import SandboxPreviews
from sandkasten.model.field_patterns import form
from sandkasten.model.ids import sandbox_id
from sandkasten.model.json_codec import iso
from sandkasten.model.sandbox.network_policy import default_network
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Info, UpdateRequest
from sandkasten_e2b.e2b_domain import told_domain, told_id
from sandkasten_e2b.e2b_messages import (
    Create,
    ListQuery,
    MetricsQuery,
    Network,
    Pause,
    Refresh,
    Timeout,
)
from sandkasten_e2b.pause_schedule import PauseTime
from sandkasten_e2b.sandbox_page import page_of, started_after
from sandkasten_e2b.snapshot_store import fill, find
from sandkasten_server.api.response.json_response import answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.model.sandbox.sandbox_values import Stats
    from sandkasten_e2b.envd_tokens import EnvdTokens
    from sandkasten_e2b.pause_schedule import PauseSchedule
    from sandkasten_e2b.snapshot_store import Snapshot
    from sandkasten_server.api.request.http_call import Call

# Unlocks every feature of the SDKs that is implemented here.
ENVD_VERSION: Final = "0.6.4"
NEXT_TOKEN: Final = "X-Next-Token"  # noqa: S105  (the name of a header)
# A header of answers: what the request asked for and did not get in full.
NOTICE: Final = "X-Sandkasten-Notice"
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
    """The handlers. `domain` is sent to clients, which build the addresses of ports from it."""

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
        timeout_s = _permitted_s(call, None, body.timeout)
        network: Any = _network(body.network, body.allow_internet_access)
        network_notice = ""
        if network == "full":
            # The SDK for JavaScript asks for the internet in every request.
            network = _widest_network(call)
            if network != "full":
                network_notice = "the internet is open only as far as policy.network permits"
        options = SandboxOptions(
            idle_timeout_seconds=timeout_s,
            lifetime_seconds=timeout_s,
            env=body.envVars or {},
            labels=body.metadata or {},
            network=network,
            profile=self._profile,
        )
        is_template = template in DEFAULT_TEMPLATES or template in self._aliases
        snapshot = None if is_template else await find(call, template)
        try:
            if snapshot is not None:
                creation = self._filled(call, snapshot, options, body)
            else:
                options = replace(options, image=await self._image(call, template))
                creation = self._made(call, options, body, _session_key(call))
            info = await call.while_there(creation)
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
        notice = _notice(_timeout_notice(body.timeout, timeout_s), network_notice)
        return answer(self.created(call, info, template), 201, notice)

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
            at = call.server.clock.now() + _permitted_s(call, info, body.timeout)
            keeps_memory = body.autoPauseMemory is not False
            await self._pauses.put(info.id, PauseTime(at, body.timeout, wakes, keeps_memory))
            most = call.engine.policy.lifetime_s
            return await _update(call, info.id, lifetime_seconds=most, idle_timeout_seconds=most)

    async def _open_ports(self, call: Call, info: Info, network: Network | None) -> None:
        """Set what the request asks for ports: whether they are public, and the Host to send."""
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

    async def template_alias(self, call: Call) -> Response:
        """Return whether `create` accepts a template of that name; NotFound if it does not."""
        alias = call.path("alias")
        if alias in DEFAULT_TEMPLATES or alias in self._aliases:
            return _template(alias)
        if await find(call, alias) is not None:
            return _template(alias)
        try:
            await call.engine.images.inspect(alias)
        except (ImageNotFound, InvalidImage, UnsupportedByBackend) as exc:
            raise NotFound(
                f"template {alias[:100]!r} not found: {exc.message}",
                hint="a template is an image or a snapshot here: sandkasten image ls shows images",
            ) from exc
        return _template(alias)

    async def connect(self, call: Call) -> Response:
        the_id = await call.session()
        timeout = (await call.body(Timeout)).timeout
        info = await self.living(call, the_id)
        if info.status == "paused":
            return await self._resumed(call, info, timeout)
        # Connecting never shortens the time that is left.
        permitted_s = _permitted_s(call, info, timeout)
        if call.server.clock.now() + permitted_s > self._ends_at(info):
            info = await self._end_after(call, info, timeout)
        notice = _notice(_timeout_notice(timeout, permitted_s))
        return answer(self.created(call, info, info.image), headers=notice)

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
        states = [state for state in (query.state or "").split(",") if state]
        wanted = {
            # The Python SDK quotes names and values twice.
            unquote(name): (value, unquote(value))
            for name, value in parse_qsl(query.metadata or "", keep_blank_values=True)
        }
        after = started_after(query.startedAfter)
        infos = [
            info
            for info in await call.engine.list(tenant=call.principal.tenant)
            if info.status not in _ENDING
            and _state(info) in (states or ("running", "paused"))
            and all(info.labels.get(name) in values for name, values in wanted.items())
            and (after is None or round(info.created_at, 3) >= after)
            and query.template in (None, info.image)
        ]
        page, following = page_of(
            infos, query.limit, query.nextToken, newest_first=query.order != "asc"
        )
        headers = None if following is None else {NEXT_TOKEN: following}
        return answer([self._listed(call, info) for info in page], headers=headers)

    async def destroy(self, call: Call) -> Response:
        await call.engine.destroy(await call.session())
        return Response(status_code=204)

    async def set_timeout(self, call: Call) -> Response:
        the_id = await call.session()
        timeout = (await call.body(Timeout)).timeout
        return await self._set_end(call, await self.living(call, the_id), timeout)

    async def refresh(self, call: Call) -> Response:
        the_id = await call.session()
        duration = (await call.body(Refresh)).duration
        return await self._set_end(call, await self.living(call, the_id), duration)

    async def _set_end(self, call: Call, info: Info, seconds: int) -> Response:
        notice = _notice(_timeout_notice(seconds, _permitted_s(call, info, seconds)))
        await self._end_after(call, info, seconds)
        return Response(status_code=204, headers=notice)

    async def pause(self, call: Call) -> Response:
        the_id = await call.session()
        keeps_memory = (await call.body(Pause)).memory is not False
        info = await self.living(call, the_id)
        if info.status == "paused":
            raise Conflict(f"sandbox {the_id} is already paused", hint="connect resumes it")
        # A paused sandbox waits for its next connect as long as the operator permits.
        most = call.engine.policy.lifetime_s
        await _update(call, the_id, lifetime_seconds=most, idle_timeout_seconds=most)
        try:
            await self._pauses.pause(call.engine, info, keeps_memory=keeps_memory)
        except SandkastenError:
            # It still runs, and must end when it would have ended.
            before = {"lifetime_seconds": info.lifetime_s}
            await _update(call, the_id, **before, idle_timeout_seconds=info.idle_timeout_s)
            raise
        return Response(status_code=204)

    async def metrics(self, call: Call) -> Response:
        the_id = await call.session()
        query = call.query(MetricsQuery)
        now = call.server.clock.now()
        if (query.end is not None and query.end + _SLACK_S < now) or (query.start or 0) > now:
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
        await _update(call, the_id, network=_default_network(call) if network is None else network)
        return Response(status_code=204)

    async def _resumed(self, call: Call, info: Info, seconds: int) -> Response:
        notice = _notice(_timeout_notice(seconds, _permitted_s(call, info, seconds)))
        if self._pauses.get(info.id) is not None:
            # Before it runs: its time to pause is over, and it would be paused again.
            await self._end_after(call, info, seconds)
            info = await call.engine.resume(info.id)
        else:
            await call.engine.resume(info.id)
            info = await self._end_after(call, info, seconds)
        return answer(self.created(call, info, info.image), 201, notice)

    async def _end_after(self, call: Call, info: Info, seconds: int) -> Info:
        timeout_s = _permitted_s(call, info, seconds)
        pause = self._pauses.get(info.id)
        if pause is not None:
            at = call.server.clock.now() + (timeout_s if seconds else 0)
            await self._pauses.put(info.id, replace(pause, at=at, timeout_s=max(1, seconds)))
            return info
        return await _update(
            call,
            info.id,
            lifetime_seconds=_lifetime_s(call, info, timeout_s),
            idle_timeout_seconds=timeout_s,
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
            "sandboxID": told_id(call, info, self._domain),
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
            "sandboxID": told_id(call, info, self._domain),
            "clientID": _CLIENT,
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self._tokens.token(info.id),
            "trafficAccessToken": self._tokens.traffic_token(info.id),
            "domain": told_domain(call) or self._domain,
        }


def _permitted_s(call: Call, info: Info | None, seconds: int) -> float:
    """Return the timeout that a sandbox gets: as requested, or what the operator permits of it.

    Programs for E2B ask for its longest one, 24 hours. They see the end in `endAt`.
    """
    age_s = 0.0 if info is None else max(0.0, call.server.clock.now() - info.created_at)
    return min(float(max(1, seconds)), max(1.0, call.engine.policy.lifetime_s - age_s))


def _notice(*texts: str) -> dict[str, str]:
    """Return the header that names what the operator does not permit, or none."""
    notice = "; ".join(text for text in texts if text)
    return {NOTICE: notice} if notice else {}


def _timeout_notice(seconds: int, permitted_s: float) -> str:
    if permitted_s >= seconds:
        return ""
    return f"timeout is {permitted_s:.0f} s; session_max_lifetime_seconds permits no more"


def _lifetime_s(call: Call, info: Info, timeout_s: float) -> float:
    """Return the lifetime of a sandbox that ends in `timeout_s`."""
    age_s = max(0.0, call.server.clock.now() - info.created_at)
    return min(age_s + timeout_s, call.engine.policy.lifetime_s)


def _default_network(call: Call) -> Any:
    """Return the network that a new sandbox gets if its request names none."""
    return _widest_network(call) if call.engine.policy.network_default else "none"


def _widest_network(call: Call) -> Any:
    """Return the widest network that the operator permits to the client."""
    operator = call.principal.key_id is None
    return default_network(call.engine.policy.network, operator=operator).public()


@asynccontextmanager
async def _kept_only_if_done(call: Call, info: Info) -> AsyncIterator[None]:
    """Destroy a new sandbox if the block that prepares it fails or is cancelled."""
    try:
        yield
    except BaseException:
        with suppress(SandkastenError):
            await finish(call.engine.destroy(info.id))
        raise


def _template(name: str) -> Response:
    # Images are shared by all tenants, and clients cannot change one.
    return answer({"templateID": name, "public": True})


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
    closed = any(rule in _ALL_TRAFFIC for rule in deny)
    deny = [rule for rule in deny if rule not in _ALL_TRAFFIC]
    if any(rule in _ALL_TRAFFIC for rule in allow):
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
