"""Choose one of several Docker Engines, and keep each within its number of sandboxes.

A request that names an engine gets that one or an error. One that names labels gets the first
engine of the settings that has them, answers, and has room. A named workspace is on one engine, and
a request that names no engine goes there. Nothing balances load. Only rows of the ledger count as
sandboxes, so a request that fails takes no room from others. Raises InvalidRequest, QuotaExceeded,
UnsupportedByBackend and BackendUnavailable.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.engine.placement.backend_health import LOOK_TIMEOUT_S
from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
    QuotaExceeded,
    SandkastenError,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.backends.docker_engines import (
    DOCKER,
    ENGINE_PREFIX,
    EngineRules,
    engine_labels,
    family,
    has_labels,
    labelled,
    unknown_engine,
    written,
)
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.workspace import not_on_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.engine.handles import Handles
    from sandkasten.engine.lifecycle.workspace_claims import WorkspaceClaims
    from sandkasten.model.backends.backend_features import BackendReport
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import CreateRequest
    from sandkasten.ports import Store

# Long enough for a named workspace that another create of the same engine waits for.
_LOCK_WAIT_S = 90.0
_NO_RULES = EngineRules()
_QUOTA = "max_sandboxes"


class DockerEngineChoice:
    def __init__(
        self,
        engines: Mapping[str, EngineRules],
        store: Store,
        handles: Handles,
        claims: WorkspaceClaims,
    ) -> None:
        self._engines = engines
        self._store = store
        self._handles = handles
        self._claims = claims

    async def choose(self, asked: str, workspace: str | None, *, named: bool) -> str:
        """Return the backend for a request. `named`: whether the request names `asked` itself, or
        it is the default.
        """
        labels = engine_labels(asked)
        if labels is not None:
            return await self._labelled(labels, workspace)
        if asked.startswith(ENGINE_PREFIX) and asked not in self._engines:
            raise unknown_engine(asked, self._engines)
        if self._engines and (asked == DOCKER or (not named and family(asked) == DOCKER)):
            keeper = await self._keeper(workspace)
            return keeper if keeper in self._engines or keeper == DOCKER else asked
        return asked

    async def of_session(self, request: CreateRequest, key: str | None) -> CreateRequest:
        """Name the engine of an existing session if the request chooses one by labels: the session
        stays where it is, whichever engine has room now.
        """
        asked = request.options.backend
        if key is None or asked is None or engine_labels(asked) is None:
            return request
        found = await self._store.find_key(key)
        if found is None or not self._satisfied(asked, found.backend):
            return request
        return replace(request, options=replace(request.options, backend=found.backend))

    def _satisfied(self, asked: str, backend: str) -> bool:
        """Return whether a sandbox of this backend has the labels that a request names."""
        labels, rules = engine_labels(asked), self._engines.get(backend)
        return labels is not None and rules is not None and has_labels(rules, labels)

    async def _labelled(self, labels: Mapping[str, str], workspace: str | None) -> str:
        names = labelled(self._engines, labels)
        keeper = await self._keeper(workspace)
        if keeper and workspace is not None:
            if keeper not in names:
                raise not_on_engine(workspace, keeper, written(labels))
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
        message = f"no Docker Engine with {written(labels)} can take a sandbox: " + "; ".join(
            f"{name.removeprefix(ENGINE_PREFIX)}: {exc.message}" for name, exc in reasons
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
        """Add the labels of engines, and how many sandboxes each backend has and may have."""
        records = await self._store.list()
        counts = Counter(one.backend for one in records if one.state is not State.LOST)
        rules = {one.name: self._engines.get(one.name, _NO_RULES) for one in reports}
        return [
            replace(
                one,
                labels=rules[one.name].labels,
                sandboxes=counts[one.name],
                max_sandboxes=rules[one.name].max_sandboxes,
            )
            for one in reports
        ]

    @asynccontextmanager
    async def admitted(self, record: Record) -> AsyncIterator[None]:
        """Raise QuotaExceeded if the engine of a new sandbox is full. The caller writes its row
        inside the block, where the next one counts it.
        """
        rules = self._engines.get(record.backend)
        if rules is None or rules.max_sandboxes is None:
            yield
            return
        async with self._store.lock(f"engine:{record.backend}", wait_s=_LOCK_WAIT_S):
            # The warm pool leaves the last place to a request.
            await self._check_room(record.backend, 2 if record.acquired == "spare" else 1)
            yield

    async def _check_room(self, name: str, needed: int = 1) -> None:
        """Raise QuotaExceeded if an engine has no room for this many more sandboxes."""
        most = self._engines[name].max_sandboxes
        if most is None:
            return
        records = await self._records(name)
        if len(records) + needed > most:
            # A sandbox that died unnoticed does not count.
            records = await self._claims.living(records)
        if len(records) + needed > most:
            raise _full(name, len(records), most)

    async def _records(self, name: str) -> list[Record]:
        return [
            one
            for one in await self._store.list()
            if one.backend == name and one.state is not State.LOST
        ]


def is_full(error: QuotaExceeded, name: str) -> bool:
    """Return whether the error says that this engine has no more room."""
    return error.details.get("quota") == _QUOTA and error.details.get("backend") == name


def _full(name: str, used: int, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"Docker Engine {name.removeprefix(ENGINE_PREFIX)} has {used} of {most} sandboxes",
        hint="destroy one, request another Docker Engine, or raise its max_sandboxes",
        quota=_QUOTA,
        limit=most,
        used=used,
        backend=name,
    )
