"""Choose the isolation of a request.

A tier is a backend with a strength. `standard` is the operator's default backend, `gvisor` adds a
second kernel, `strongest` is the strongest one that is ready. A request gets what it asked for or
is refused: nothing here ever chooses something weaker. Raises InvalidRequest, PolicyDenied and
BackendUnavailable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    BackendUnavailable,
    InvalidRequest,
    PolicyDenied,
)
from sandkasten.model.backends.capabilities import check_open
from sandkasten.model.backends.named_backends import kind_of
from sandkasten.model.sandbox.isolation_levels import ISOLATIONS, weakest_of
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_runtime.engine.placement.places import not_configured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import Backend
    from sandkasten_runtime.engine.placement.named_backend_choice import NamedBackendChoice

_GVISOR: Final = "gvisor"


class IsolationTiers:
    """Chooses a backend and remembers which ones were ready."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        default_backend: str,
        policy: Policy,
        named_backends: NamedBackendChoice | None = None,
    ) -> None:
        self._backends = backends
        self._default = default_backend
        self._policy = policy
        self._named_backends = named_backends
        self._ready_ones: dict[str, Readiness] = {}

    async def choose(
        self, backend: str | None, isolation: str | None, workspace: str | None = None
    ) -> Backend:
        """Return the backend for a request that uses this workspace. The default backend is not
        probed: create reports what fails.
        """
        requested = self._asked(backend, isolation)
        minimum = self._policy.isolation_minimum
        if requested == "strongest":
            chosen = await self._strongest(minimum)
        elif requested == _GVISOR:
            chosen = await self._ready(_GVISOR)
        else:
            name = backend or self._default
            if self._named_backends is not None:
                name = await self._named_backends.choose(
                    name, workspace, explicit=backend is not None
                )
            chosen = self._known(name)
        if minimum is not None and chosen.capabilities.strength < weakest_of(minimum):
            raise PolicyDenied(
                f"backend {chosen.name} isolates less than the operator requires ({minimum})",
                hint=f"ask for isolation {minimum} or strongest; see policy.isolation_minimum",
                rule="policy.isolation_minimum",
                backend=chosen.name,
            )
        return chosen

    def _asked(self, backend: str | None, isolation: str | None) -> str:
        if isolation is None:
            if backend is not None:
                return _GVISOR if backend == _GVISOR else "standard"
            # A request that names no isolation accepts the operator's minimum.
            return self._policy.isolation or self._policy.isolation_minimum or "standard"
        if isolation not in ISOLATIONS:
            raise InvalidRequest(
                f"isolation {shown(str(isolation))} does not exist",
                hint=did_you_mean(str(isolation), ISOLATIONS),
                field="isolation",
            )
        if backend is not None and isolation != ("gvisor" if backend == _GVISOR else "standard"):
            raise InvalidRequest(
                f"isolation {isolation} and backend {shown(backend)} contradict each other",
                hint="name only one of them: the isolation selects the backend",
                field="isolation",
            )
        return isolation

    async def named(self, name: str, workspace: str | None = None) -> Backend:
        """Return a backend of a rule for a request that uses this workspace. Raise
        BackendUnavailable if it is not configured, or known not to be ready before anything is
        made on it.
        """
        if name == _GVISOR:
            return await self._ready(name)
        if self._named_backends is not None:
            name = await self._named_backends.choose(name, workspace, explicit=True)
        return self._known(name)

    async def _strongest(self, minimum: str | None) -> Backend:
        """Return the strongest ready backend, preferring the default. Of the backends of a
        platform, only the default is a candidate: code and files go to a platform only if a request
        or the operator names it.
        """
        ranked = sorted(
            (backend for backend in self._backends.values() if self._may_replace_default(backend)),
            key=lambda backend: (
                -backend.capabilities.strength,
                backend.name != self._default,
                backend.name,
            ),
        )
        refusals: list[BackendUnavailable] = []
        for backend in ranked:
            if minimum is not None and backend.capabilities.strength < weakest_of(minimum):
                break
            readiness = await self._readiness(backend)
            if readiness.ready:
                return backend
            refusals.append(_unready(backend.name, readiness))
        if refusals:
            raise refusals[0]
        raise BackendUnavailable(
            f"no configured backend meets the required isolation ({minimum})",
            hint="run `sandkasten doctor`; see policy.isolation_minimum",
        )

    def _may_replace_default(self, backend: Backend) -> bool:
        if backend.name == self._default:
            return True
        # One that is closed is not ready either, and keeps none from being chosen.
        default, can = self._backends[self._default].capabilities, backend.capabilities
        here = not default.external or can.strength > default.strength
        return here and not can.external

    def strength(self, name: str) -> int:
        """Return the strength of a backend, also of one that is chosen by labels (`KIND/K=V`)."""
        backend = self._backends.get(name) or self._backends.get(kind_of(name))
        return 0 if backend is None else backend.capabilities.strength

    async def _ready(self, name: str) -> Backend:
        backend = self._known(name)
        readiness = await self._readiness(backend)
        if not readiness.ready:
            raise _unready(name, readiness)
        return backend

    def _known(self, name: str) -> Backend:
        backend = self._backends.get(name)
        if backend is None:
            raise not_configured(name, self._backends)
        check_open(name, backend.capabilities)
        return backend

    async def _readiness(self, backend: Backend) -> Readiness:
        """Return the readiness of a backend. Only a good one is remembered: a missing part may be
        installed at any time, and an engine may stop at any time.
        """
        remembered = self._ready_ones.get(backend.name)
        if remembered is not None:
            return remembered
        readiness = await backend.probe()
        if readiness.ready and not backend.capabilities.external:
            self._ready_ones[backend.name] = readiness
        return readiness


def _unready(name: str, readiness: Readiness) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {name} is not ready: {readiness.reason or 'something it needs is missing'}",
        hint=readiness.remedy or "run doctor",
        backend=name,
    )
