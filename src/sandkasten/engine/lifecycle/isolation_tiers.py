"""Choose the isolation of a request, and report what each tier offers on this machine.

A tier is a backend with a strength. `standard` is the operator's default backend, `gvisor` adds a
second kernel, `strongest` is the strongest one that is ready. A request gets what it asked for or
is refused: nothing here ever chooses something weaker. Raises InvalidRequest, PolicyDenied and
BackendUnavailable; measures by creating and destroying real sandboxes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.engine.lifecycle.backend_survey import readiness_of
from sandkasten.errors import (
    BackendUnavailable,
    InvalidRequest,
    PolicyDenied,
    SandkastenError,
)
from sandkasten.model.backends.docker_engines import ENGINE_PREFIX, not_configured
from sandkasten.model.sandbox.isolation_levels import ISOLATIONS, has_engine, strength, weakest_of
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten.ports import NeedsEnabling, RunsOnce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.engine.lifecycle.engine_choice import EngineChoice
    from sandkasten.engine.lifecycle.planner import Planner
    from sandkasten.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.ports import Backend, ImageSource

_GVISOR: Final = "gvisor"
_CREATES: Final = 3
# Names that a machine with any image is likely to have.
_LIKELY_IMAGES: Final = ("python", "linux", "node", "base")
_NO_IMAGE: Final = "there is no image in the store"
_GET_IMAGE: Final = (
    "build one with sandkasten image build datascience (requires mmdebstrap), or use "
    "sandkasten image import or image pull"
)


class IsolationTiers:
    """Chooses a backend and remembers which ones were ready."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        default_backend: str,
        policy: Policy,
        engines: EngineChoice | None = None,
    ) -> None:
        self._backends = backends
        self._default = default_backend
        self._policy = policy
        self._engines = engines
        self._ready_ones: dict[str, Readiness] = {}

    async def choose(
        self, backend: str | None, isolation: str | None, workspace: str | None = None
    ) -> Backend:
        """Return the backend for a request that uses this workspace. The default backend is not
        probed: create reports what fails.
        """
        asked = self._asked(backend, isolation)
        minimum = self._policy.isolation_minimum
        if asked == "strongest":
            chosen = await self._strongest(minimum)
        elif asked == _GVISOR:
            chosen = await self._ready(_GVISOR)
        else:
            named = backend or self._default
            if self._engines is not None:
                named = await self._engines.choose(named, workspace, named=backend is not None)
            chosen = self._known(named)
        if minimum is not None and strength(chosen.name) < weakest_of(minimum):
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
                f"there is no isolation named {shown(str(isolation))}",
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
        if self._engines is not None:
            name = await self._engines.choose(name, workspace, named=True)
        return self._known(name)

    async def _strongest(self, minimum: str | None) -> Backend:
        """Return the strongest ready backend, preferring the default. Of the backends behind an
        engine, only the default is a candidate: code and files go to a Docker Engine, a cluster or
        a provider only if a request or the operator names it.
        """
        ranked = sorted(
            (one for one in self._backends.values() if self._may_replace_default(one.name)),
            key=lambda one: (-strength(one.name), one.name != self._default, one.name),
        )
        refusals: list[BackendUnavailable] = []
        for one in ranked:
            if minimum is not None and strength(one.name) < weakest_of(minimum):
                break
            readiness = await self._readiness(one)
            if readiness.ready:
                return one
            refusals.append(_unready(one.name, readiness))
        if refusals:
            raise refusals[0]
        raise BackendUnavailable(
            f"no configured backend meets the required isolation ({minimum})",
            hint="run `sandkasten doctor`; see policy.isolation_minimum",
        )

    def _may_replace_default(self, name: str) -> bool:
        if name == self._default:
            return True
        here = not has_engine(self._default) or strength(name) > strength(self._default)
        return here and not has_engine(name)

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
        if isinstance(backend, NeedsEnabling):
            backend.check_enabled()
        return backend

    async def _readiness(self, backend: Backend) -> Readiness:
        """Return the readiness of a backend. Only a good one is remembered: a missing part may be
        installed at any time, and an engine may stop at any time.
        """
        known = self._ready_ones.get(backend.name)
        if known is not None:
            return known
        readiness = await backend.probe()
        if readiness.ready and not has_engine(backend.name):
            self._ready_ones[backend.name] = readiness
        return readiness


def _unready(name: str, found: Readiness) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {name} is not ready: {found.reason or 'something it needs is missing'}",
        hint=found.remedy or "run doctor",
        backend=name,
    )


class TierSurvey:
    """The report of `doctor`: every tier, tried."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        default_backend: str,
        policy: Policy,
        images: ImageSource,
        planner: Planner,
        sandboxes: Sandboxes,
    ) -> None:
        self._backends = backends
        self._default = default_backend
        self._policy = policy
        self._images = images
        self._planner = planner
        self._sandboxes = sandboxes

    async def tiers(self, *, measure: bool) -> list[Tier]:
        """Return all tiers, the default first. With `measure`, create a few real sandboxes on each
        ready one.
        """
        image = await self._some_image()
        if isinstance(self._backends.get(self._default), RunsOnce):
            # It makes no sandbox that could be planned or measured.
            lines = [replace(await self._looked_at(self._default), default=True)]
        else:
            lines = [await self._tier("", CreateRequest(), measure)]
        default = lines[0].backend
        if "local" in self._backends:
            if default != "local":
                host = CreateRequest(SandboxOptions(backend="local", image="host"))
                lines.append(await self._tier("local", host, measure))
            on_image = CreateRequest(SandboxOptions(backend="local", image=image))
            if image is None:
                lines.append(_missing("local on an image", "local", _NO_IMAGE, _GET_IMAGE))
            else:
                lines.append(await self._tier("local on an image", on_image, measure))
            dev = CreateRequest(SandboxOptions(backend="local", image=image, profile="dev"))
            lines.append(await self._tier("local, dev profile", dev, measure))
        engines = [name for name in self._backends if name.startswith(ENGINE_PREFIX)]
        for name in ("oci", _GVISOR, "docker", *engines):
            if name not in self._backends:
                reason = f"this engine has no backend named {name}"
                lines.append(
                    _missing(name, name, reason, f"open it with {name} among its backends")
                )
            elif name != default:
                wanted = CreateRequest(SandboxOptions(backend=name, image=image))
                if has_engine(name):
                    lines.append(await self._looked_at(name))
                else:
                    lines.append(await self._tier(name, wanted, measure))
        return lines

    async def _tier(self, name: str, wanted: CreateRequest, measure: bool) -> Tier:
        """Report one tier. An empty `name` means the default tier, which is named by its result."""
        default, backend = not name, wanted.options.backend or self._default
        create_ms: float | None = None
        try:
            if default:
                backend = (await self._planner.plan(wanted)).backend.name
            found = await readiness_of(self._backends[backend])
            if found.ready:
                plan = await self._planner.plan(wanted)
                create_ms = await self._create_ms(wanted) if measure else None
        except SandkastenError as exc:
            reason = exc.operator_message
            return _missing(name or backend, backend, reason, exc.hint, default=default)
        if not found.ready:
            return _missing(name or backend, backend, found.reason, found.remedy, default=default)
        return Tier(
            name=name or backend,
            backend=backend,
            image=plan.spec.image.name,
            profile=plan.spec.profile,
            ready=True,
            default=default,
            tried=measure,
            warnings=_warnings(found),
            create_ms=create_ms,
        )

    async def _looked_at(self, name: str) -> Tier:
        """Only probe: planning a sandbox could already copy an image into the user's engine."""
        found = await readiness_of(self._backends[name])
        if not found.ready:
            return _missing(name, name, found.reason, found.remedy)
        return Tier(name=name, backend=name, ready=True, warnings=_warnings(found))

    async def _create_ms(self, wanted: CreateRequest) -> float:
        """Return the median create time. The first create also makes what the others share, and is
        left out.
        """
        times: list[float] = []
        for _ in range(_CREATES + 1):
            plan = await self._planner.plan(wanted)
            began = time.perf_counter()
            record = await self._sandboxes.make(plan)
            times.append((time.perf_counter() - began) * 1000)
            await self._sandboxes.destroy(record.id)
        from statistics import median

        return round(median(times[1:]), 1)

    async def _some_image(self) -> str | None:
        """Return the name of an image that has layers, not the host image."""
        default: str | None = self._policy.default_image
        for name in _LIKELY_IMAGES if default is None else (default, *_LIKELY_IMAGES):
            try:
                image = await self._images.resolve(name)
            except SandkastenError:
                continue
            if image.kind == "layers":
                return name
        return None


def _warnings(found: Readiness) -> tuple[Requirement, ...]:
    return tuple(one for one in found.requirements if not one.ok and not one.required)


def _missing(name: str, backend: str, reason: str, remedy: str, *, default: bool = False) -> Tier:
    return Tier(
        name=name, backend=backend, ready=False, reason=reason, remedy=remedy, default=default
    )
