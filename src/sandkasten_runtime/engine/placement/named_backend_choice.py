"""Choose one of several backends of one kind, and keep each within its number of sandboxes.

A request that names a backend gets that one or an error. One that names labels gets the first of
the settings that has them, answers, and has room. A named workspace is on one backend, and a
request that names none goes there. Nothing balances load. Only rows of the ledger count as
sandboxes, so a request that fails takes no room from others. Raises InvalidRequest, QuotaExceeded,
UnsupportedByBackend and BackendUnavailable.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
    QuotaExceeded,
    SandkastenError,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.model.backends.named_backends import (
    NamedBackendRules,
    check_length,
    has_labels,
    is_by_label,
    kind_of,
    labelled,
    labels_of,
    of_kind,
    own_name,
    unknown_name,
    written,
)
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.workspace import workspace_elsewhere
from sandkasten_runtime.engine.placement.backend_health import LOOK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.model.backends.backend_features import BackendReport
    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import CreateRequest
    from sandkasten.ports import Backend, Store
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims

# Long enough for a named workspace that another create on the same backend waits for.
_LOCK_WAIT_S = 90.0
_NO_RULES = NamedBackendRules()
_QUOTA = "max_sandboxes"


class NamedBackendChoice:
    def __init__(
        self,
        named: Mapping[str, NamedBackendRules],
        backends: Mapping[str, Backend],
        store: Store,
        handles: Handles,
        claims: WorkspaceClaims,
    ) -> None:
        self._named = named
        self._kinds = {
            kind_of(name): backend.capabilities
            for name, backend in backends.items()
            if backend.capabilities.named_by
        }
        self._store = store
        self._handles = handles
        self._claims = claims

    async def choose(self, requested: str, workspace: str | None, *, explicit: bool) -> str:
        """Return the backend for a request. `explicit`: the request names `requested` itself;
        False: it is the default.
        """
        main = kind_of(requested)
        kind = self._kinds.get(main)
        if kind is None:
            return requested
        labels = labels_of(requested, kind)
        if labels is not None:
            return await self._labelled(requested, kind, labels, workspace)
        if requested not in (main, *self._named):
            raise unknown_name(requested, kind, self._named)
        siblings = of_kind(self._named, requested)
        if siblings and (requested == main or not explicit):
            keeper = await self._keeper(workspace)
            return keeper if keeper in (main, *siblings) else requested
        return requested

    async def of_session(self, request: CreateRequest, key: str | None) -> CreateRequest:
        """Name the backend of an existing session if the request chooses one by labels: the session
        stays where it is, whichever backend has room now.
        """
        requested = request.options.backend
        if key is None or requested is None:
            return request
        check_length(requested)
        if not is_by_label(requested):
            return request
        record = await self._store.find_key(key)
        if record is None or not self._satisfied(requested, record.backend):
            return request
        return replace(request, options=replace(request.options, backend=record.backend))

    def _satisfied(self, requested: str, backend: str) -> bool:
        """Return whether a sandbox of this backend has the labels that a request names."""
        kind, rules = self._kind(requested), of_kind(self._named, requested).get(backend)
        return rules is not None and has_labels(rules, labels_of(requested, kind) or {})

    async def _labelled(
        self, requested: str, kind: Capabilities, labels: Mapping[str, str], workspace: str | None
    ) -> str:
        names = labelled(requested, kind, self._named, labels)
        keeper = await self._keeper(workspace)
        if keeper and workspace is not None:
            if keeper not in names:
                raise workspace_elsewhere(workspace, keeper, written(labels))
            return keeper
        refusals: list[SandkastenError] = []
        for name in names:
            try:
                await self._check_room(name)
                await self._ping(name)
            except (BackendUnavailable, InvalidConfiguration, QuotaExceeded) as exc:
                refusals.append(exc)
            else:
                return name
        if len(refusals) == 1:
            raise refusals[0]
        reasons = zip(names, refusals, strict=True)
        message = f"no {kind.platform} with {written(labels)} can take a sandbox: " + "; ".join(
            f"{own_name(name)}: {exc.message}" for name, exc in reasons
        )
        if all(isinstance(exc, QuotaExceeded) for exc in refusals):
            raise QuotaExceeded(message, hint=refusals[0].hint, quota=_QUOTA)
        raise BackendUnavailable(message, hint="retry later, or run `sandkasten doctor`")

    async def _ping(self, name: str) -> None:
        backend = self._handles.backend(name)
        async with self._handles.health.looking(name, LOOK_TIMEOUT_S):
            await backend.ping()

    async def _keeper(self, workspace: str | None) -> str:
        """Return the backend that has the files of a workspace; empty if there is none."""
        if workspace is None or not self._claims.kept:
            return ""
        try:
            return (await self._claims.port.get(workspace)).keeper
        except (WorkspaceNotFound, WorkspaceDamaged):
            return ""

    # ---- room

    async def described(self, reports: Sequence[BackendReport]) -> list[BackendReport]:
        """Add labels, and how many sandboxes each backend has and may have."""
        records = await self._store.list()
        counts = Counter(record.backend for record in records if record.state is not State.LOST)
        rules = {report.name: self._named.get(report.name, _NO_RULES) for report in reports}
        return [
            replace(
                report,
                labels=rules[report.name].labels,
                sandboxes=counts[report.name],
                max_sandboxes=rules[report.name].max_sandboxes,
            )
            for report in reports
        ]

    @asynccontextmanager
    async def admitted(self, record: Record) -> AsyncIterator[None]:
        """Raise QuotaExceeded if the backend of a new sandbox is full. The caller writes its row
        inside the block, where the next one counts it.
        """
        rules = self._named.get(record.backend)
        if rules is None or rules.max_sandboxes is None:
            yield
            return
        # The name that earlier versions lock.
        async with self._store.lock(f"engine:{record.backend}", wait_s=_LOCK_WAIT_S):
            # The warm pool leaves the last place to a request.
            await self._check_room(record.backend, 2 if record.acquired == "spare" else 1)
            yield

    async def _check_room(self, name: str, needed: int = 1) -> None:
        """Raise QuotaExceeded if a named backend has no room for this many more sandboxes."""
        most = self._named[name].max_sandboxes
        if most is None:
            return
        records = await self._records(name)
        if len(records) + needed > most:
            # A sandbox that died unnoticed does not count.
            records = await self._claims.living(records)
        if len(records) + needed > most:
            raise _full(name, self._kind(name), len(records), most)

    def _kind(self, name: str) -> Capabilities:
        return self._kinds.get(kind_of(name), UNKNOWN)

    async def _records(self, name: str) -> list[Record]:
        return [
            record
            for record in await self._store.list()
            if record.backend == name and record.state is not State.LOST
        ]


def is_full(error: QuotaExceeded, name: str) -> bool:
    """Return whether the error says that this backend has no more room."""
    return error.details.get("quota") == _QUOTA and error.details.get("backend") == name


def _full(name: str, kind: Capabilities, used: int, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{kind.platform} {own_name(name)} has {used} of {most} sandboxes",
        hint=f"destroy one, request another {kind.platform}, or raise its max_sandboxes",
        quota=_QUOTA,
        limit=most,
        used=used,
        backend=name,
    )
