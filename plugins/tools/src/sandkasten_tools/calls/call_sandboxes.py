"""Sandbox of a tool call: the run's default sandbox, opened on first use, or one the model names.

A model can name only sandboxes of its own run: the id of another run, of another tenant, or an
unknown id all give the same SESSION_NOT_FOUND. `finish` destroys the sandboxes of a run; it reads
the ledger and needs no state of this process.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.model.runs.session_key import SessionKey, is_legacy, parse_session_key
from sandkasten.model.sandbox.sandbox_values import UpdateRequest
from sandkasten.model.sandbox.session_joins import JOIN_REFUSED, as_details, read_details
from sandkasten.model.spelling import shown
from sandkasten_tools.calls.policy_check import network_of
from sandkasten_tools.calls.tool_answers import unforeseen
from sandkasten_tools.calls.tool_requests import (
    AGENT_LABEL,
    join_terms,
    request_for,
    retain_label,
    retention_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.model.runs.session_key import Namespace
    from sandkasten.model.sandbox.sandbox_values import CreateRequest, Info
    from sandkasten.model.sandbox.session_joins import Difference, SessionShape
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.calls.run_context import RunContext

_NAMED_IMAGE: Final = "leave image out, or pass another session_key"
# Sandboxes cached beside the ledger, a few hundred bytes each; the oldest is dropped.
_REMEMBERED: Final = 10_000
_AT_ONCE: Final = 8
# A call in progress when a run ended can still open a sandbox; more than this is not expected.
_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class CallSandbox:
    """The sandbox of one call."""

    info: Info
    notice: str | None = None
    """Notice for the model that its sandbox is not the same as before."""


@dataclass(frozen=True, slots=True)
class FinishResult:
    """Result of `finish`."""

    destroyed: tuple[str, ...] = ()
    failed: tuple[tuple[str, SandkastenError], ...] = ()
    """Sandboxes that remain, with the error; the engine's reaper or a second call retries."""
    retained: Mapping[str, str] = field(default_factory=dict)
    """Sandboxes that were kept, by session key."""


@dataclass(slots=True)
class _CachedSandbox:
    id: str
    kinds: set[str] = field(default_factory=set)
    """Requests already answered by this sandbox, so that the engine need not check them again."""
    closed_by: str | None = None
    """The agent run that closed it. Others learn that its files are gone."""


class CallSandboxes:
    def __init__(self, engine: Engine, max_sandboxes: int) -> None:
        self._engine = engine
        self._max_sandboxes = max_sandboxes
        self._known: dict[tuple[str, str], _CachedSandbox] = {}
        """By tenant and key, as of the last use here."""
        self._making: dict[tuple[str, str, str], set[str]] = {}
        """Sandboxes per run that are being created and are not in the ledger yet."""

    async def open(
        self, context: RunContext, *, key: SessionKey | None = None, image: str | None = None
    ) -> CallSandbox:
        """Return the session with this key; create it if needed."""
        the_key = key or context.session_key()
        before = self._known.get((context.tenant, str(the_key)))
        kind = _kind(context, the_key, image)
        if before is not None and before.kinds:
            previous = await self._alive(before.id, str(the_key))
            if previous is not None and self._may_stay(context, previous, before, kind):
                return CallSandbox(previous)
        async with self._reserved(context.tenant, the_key):
            request = self._request(context, the_key, image)
            async with self._explained(context, image):
                info = await self._engine.create(
                    request, context.quota, terms=join_terms(context, image)
                )
        info = await self._extended(context, the_key, info, request)
        self._remember(info, kind)
        if before is None or before.id == info.id or before.closed_by == context.agent_run_id:
            return CallSandbox(info)
        return CallSandbox(
            info, "the sandbox of this session ended and its files are lost; this is a new sandbox"
        )

    async def resolve(self, context: RunContext, id_text: str | None) -> CallSandbox:
        """Return the sandbox that a call names, or the run's default.

        Raise Conflict if the agent may not join it, also if another agent opened it.
        """
        if id_text is None:
            return await self.open(context)
        info = await self.named(context, id_text)
        await self._check_may_use(context, info)
        return CallSandbox(info)

    async def to_close(self, context: RunContext, id_text: str | None) -> Info | None:
        """Return the sandbox that a call names, or the run's default if it exists.

        Raise Conflict if the agent may not join it: then it may not end it either.
        """
        info = await (self.existing(context) if id_text is None else self.named(context, id_text))
        if info is not None:
            await self._check_may_use(context, info)
        return info

    async def _check_may_use(self, context: RunContext, info: Info) -> None:
        if info.session_key is not None and info.status in ("running", "paused"):
            await self._check_join(context, info, parse_session_key(info.session_key))

    async def _check_join(self, context: RunContext, info: Info, key: SessionKey) -> None:
        cached = self._known.get((info.tenant, info.session_key or ""))
        # Another agent that opened it by its name chose its image.
        kind = _kind(context, key, info.image)
        if cached is not None and self._may_stay(context, info, cached, kind):
            return
        terms = join_terms(context)
        terms = replace(terms, options=replace(terms.options, image=None))
        async with self._explained(context, None):
            # Use its id: a key in an older spelling would lead to another session.
            await self._engine.preflight.session(
                self._request(context, key, None), terms=terms, joins_id=SandboxId(info.id)
            )
        self._remember(info, kind)

    def _may_stay(self, context: RunContext, info: Info, cached: _CachedSandbox, kind: str) -> bool:
        """Return whether this request was allowed for this session, and still is."""
        allowed = cached.id == info.id and kind in cached.kinds
        return allowed and self._stays_closed(context, info)

    def _stays_closed(self, context: RunContext, info: Info) -> bool:
        """Return False if a network was opened for a session whose agent must not have one."""
        policy = self._engine.policy
        network = network_of(context.sandbox, policy)
        closed = network == "none" or (
            network is None and not context.client and not policy.network_default
        )
        return info.network == "none" or not closed

    async def _extended(
        self, context: RunContext, key: SessionKey, info: Info, request: CreateRequest
    ) -> Info:
        """Extend the session to the longest times that the agent asks for."""
        changes: dict[str, Any] = {}
        retain_s = context.retention(key)
        if retain_s > retention_of(info.labels):
            changes["labels"] = {**info.labels, **retain_label(retain_s)}
        idle_s = request.options.idle_timeout_seconds
        if context.client and context.sandbox.options.idle_timeout_seconds is None:
            idle_s = None
        if idle_s is not None and min(idle_s, info.lifetime_s) > info.idle_timeout_s:
            changes["idle_timeout_seconds"] = min(idle_s, info.lifetime_s)
        if not changes:
            return info
        return await self._engine.update(info.id, UpdateRequest(**changes))

    async def named(self, context: RunContext, id_text: str) -> Info:
        """Return a named sandbox. Raise SessionNotFound for anything not in this run."""
        try:
            the_id = sandbox_id(id_text)
            await self._engine.check_owner(the_id, context.tenant)
            info = await self._engine.get(the_id)
        except NotFound as exc:
            # Only its own run learns that the sandbox existed.
            if isinstance(exc, SessionExpired) and self._was_ours(context, id_text):
                raise
            raise not_found(id_text) from exc
        if not owned(context, info):
            raise not_found(id_text)
        self._remember(info)
        return info

    async def existing(self, context: RunContext) -> Info | None:
        """Return the run's default sandbox if it exists; create nothing."""
        wanted = str(context.session_key())
        for info in await self._engine.list(tenant=context.tenant):
            if info.session_key == wanted and info.status in ("running", "paused"):
                return info
        return None

    def key_for(self, context: RunContext, text: str) -> SessionKey:
        """Return the key for a name within the run, or for a complete key of the run."""
        if ":" not in text and not is_legacy(text):
            return context.session_key(text)
        key = parse_session_key(text)
        if not context.owns(key):
            raise SessionNotFound(
                "the key does not belong to this run",
                hint="use a plain name; the run id is added to it",
            )
        return key

    def forget(self, info: Info) -> None:
        self._known.pop((info.tenant, info.session_key or ""), None)

    def closed(self, info: Info, context: RunContext) -> None:
        self._remember(info)
        cached = self._known.get((info.tenant, info.session_key or ""))
        if cached is not None:
            cached.kinds.clear()
            cached.closed_by = context.agent_run_id

    async def finish(
        self,
        namespace: Namespace,
        run_id: str,
        tenant: str | None = None,
        *,
        retain_from: float | None = None,
    ) -> FinishResult:
        """Destroy every sandbox of a run. Idempotent, and one failure does not stop the rest.

        With `retain_from`, the current time, those that are to be kept stay, and end by
        themselves. Raises only when the ledger cannot be read.
        """
        destroyed: list[str] = []
        retained: dict[str, str] = {}
        failed: dict[str, SandkastenError] = {}
        for _ in range(_PASSES):
            infos = [
                info
                for info in await self._engine.list(tenant=tenant)
                if _run_of(info) == (namespace, run_id)
                and info.id not in failed
                and info.id not in retained.values()
            ]
            if not infos:
                break
            gate = asyncio.Semaphore(_AT_ONCE)

            async def end_sandbox(info: Info, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    if retain_from is not None and await self._retain(info, retain_from):
                        retained[str(info.session_key)] = info.id
                        return
                    try:
                        await self._engine.destroy(info.id)
                    except NotFound:
                        # Another caller has destroyed it already.
                        pass
                    except SandkastenError as exc:
                        failed[info.id] = exc
                        return
                    except Exception as exc:  # noqa: BLE001  (the others are to go all the same)
                        failed[info.id] = unforeseen(exc)
                        return
                    self.forget(info)
                    destroyed.append(info.id)

            async with asyncio.TaskGroup() as group:
                for info in infos:
                    group.create_task(end_sandbox(info))
        return FinishResult(tuple(destroyed), tuple(failed.items()), retained)

    async def _retain(self, info: Info, now: float) -> bool:
        """Let a sandbox live as long as it is to be kept; return False if it is not."""
        policy = self._engine.policy
        retain_s = min(retention_of(info.labels), policy.max_retain_s)
        if retain_s < 1 or info.status != "running":
            return False
        age_s = max(0.0, now - info.created_at)
        lifetime_s = min(age_s + retain_s, policy.lifetime_s)
        request = UpdateRequest(
            idle_timeout_seconds=min(retain_s, lifetime_s), lifetime_seconds=lifetime_s
        )
        try:
            await self._engine.update(info.id, request)
        except SandkastenError:
            # It has reached its longest lifetime, or does not answer.
            return False
        self.forget(info)
        return True

    async def _alive(self, the_id: str, key: str) -> Info | None:
        try:
            info = await self._engine.get(the_id)
        except (NotFound, SandboxLost):
            return None
        return info if info.status in ("running", "paused") and info.session_key == key else None

    @asynccontextmanager
    async def _reserved(self, tenant: str, key: SessionKey) -> AsyncIterator[None]:
        """Raise QuotaExceeded when a run has too many sandboxes: names cost a model nothing."""
        run = (key.namespace, key.id)
        making = self._making.setdefault((tenant, *run), set())
        making.add(str(key))
        try:
            there = {
                str(info.session_key)
                for info in await self._engine.list(tenant=tenant)
                if _run_of(info) == run
            }
            most = self._max_sandboxes
            if str(key) not in there and len(there | making) > most:
                raise QuotaExceeded(
                    f"this run has {most} sandboxes, which is the maximum",
                    hint="use an existing one, or close one with sandbox_close; the operator "
                    "sets agents.max_sandboxes",
                    quota="sandboxes of a run",
                )
            yield
        finally:
            making.discard(str(key))
            if not making:
                self._making.pop((tenant, *run), None)

    async def check(self, context: RunContext) -> None:
        """Raise what `open` would raise for the default sandbox before it makes anything."""
        async with self._explained(context, None):
            await self._engine.preflight.session(
                self._request(context, context.session_key(), None), terms=join_terms(context)
            )

    async def shape(self, context: RunContext) -> SessionShape:
        """Return what the default session would have if this agent opened it."""
        return await self._engine.preflight.shape(
            self._request(context, context.session_key(), None)
        )

    @asynccontextmanager
    async def _explained(self, context: RunContext, image: str | None) -> AsyncIterator[None]:
        """Turn the Conflict of a session into one that names both agents and their values."""
        try:
            yield
        except Conflict as exc:
            if exc.details.get("reason") != JOIN_REFUSED:
                raise
            opener = await self._opener(str(exc.details["sandbox_id"]))
            who = "another request" if opener is None else f"agent {shown(opener, 100)}"
            refused = join_refused(
                f"agent {shown(context.agent_name, 100)}", who, read_details(exc.details)
            )
            details = {**exc.details, "agent": context.agent_name}
            if opener is not None:
                details["opened_by"] = opener
            hint = refused.hint if image is None else _NAMED_IMAGE
            raise Conflict(refused.message, hint=hint, **details) from exc

    async def _opener(self, the_id: str) -> str | None:
        """Return the agent that opened a session; None if that is not known."""
        try:
            info = await self._engine.get(the_id)
        except SandkastenError:
            return None
        return info.labels.get(AGENT_LABEL)

    def _request(self, context: RunContext, key: SessionKey, image: str | None) -> CreateRequest:
        policy = self._engine.policy
        return request_for(
            context.sandbox,
            context,
            policy.limits,
            key=key,
            image=image,
            network=network_of(context.sandbox, policy),
            default_idle_s=min(policy.ttl_s, policy.idle_timeout_s),
            most_life_s=policy.lifetime_s,
        )

    def _remember(self, info: Info, kind: str | None = None) -> None:
        if info.session_key is None:
            return
        name = (info.tenant, info.session_key)
        cached = self._known.pop(name, None)
        if cached is None or cached.id != info.id:
            cached = _CachedSandbox(info.id)
        if kind is not None:
            cached.kinds.add(kind)
        self._known[name] = cached
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def _was_ours(self, context: RunContext, the_id: str) -> bool:
        return any(
            cached.id == the_id
            and tenant == context.tenant
            and context.owns(parse_session_key(key))
            for (tenant, key), cached in self._known.items()
        )


def join_refused(joins: str, opens: str, differing: Sequence[Difference]) -> Conflict:
    """Return the error of an agent that cannot join a session, in terms of the agents' files."""
    values = "; ".join(
        f"sandbox.{term.field} must be {term.wanted}, and the session has {term.has}"
        for term in differing
    )
    return Conflict(
        f"{joins} cannot join the session that {opens} opens: {values}",
        hint="give one of the agents a session of its own (`session: isolated`, or another name), "
        "or write the same values in both files",
        reason=JOIN_REFUSED,
        **as_details(differing),
    )


def _kind(context: RunContext, key: SessionKey, image: str | None) -> str:
    """Return everything that decides whether this agent may join, and for how long."""
    terms = join_terms(context, image)
    idle_timeout_s = context.sandbox.options.idle_timeout_seconds
    return repr((terms, context.retention(key), idle_timeout_s))


def owned(context: RunContext, info: Info) -> bool:
    """Return whether a sandbox was opened in this run."""
    if info.tenant != context.tenant or info.session_key is None:
        return False
    try:
        return context.owns(parse_session_key(info.session_key))
    except InvalidRequest:
        return False


def not_found(id_text: str) -> SessionNotFound:
    """Return the same error for every id outside this run."""
    return SessionNotFound(
        f"this run has no sandbox {id_text[:80]}",
        hint="omit sandbox_id to use the default sandbox, or use an id returned by sandbox_open",
    )


def _run_of(info: Info) -> tuple[str, str] | None:
    if info.session_key is None:
        return None
    try:
        key = parse_session_key(info.session_key)
    except InvalidRequest:
        return None
    return key.namespace, key.id
