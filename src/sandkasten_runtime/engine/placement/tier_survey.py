"""Try the tiers of this machine, for `doctor`.

A tier is a backend with a kind of root and a profile. Measures by creating and destroying real
sandboxes, none of them a client's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import ImageNotFound, SandkastenError
from sandkasten.model.optional_extras import DOCTOR_BACKENDS, SECTION_EXTRAS, install_command
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.placement.backend_survey import readiness_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.ports import Backend, ImageLibrary, ImageSource
    from sandkasten_runtime.engine.lifecycle.planner import Planner
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes

_CREATES: Final = 3
# Names that are tried before the others of the store: small images with the usual programs.
_USUAL_IMAGES: Final = ("python", "linux", "node", "base")
_NO_IMAGE: Final = "the store has no images"
_GET_IMAGE: Final = (
    "build one with sandkasten image build datascience (requires mmdebstrap), or use "
    "sandkasten image import or image pull"
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
        library: ImageLibrary | None = None,
    ) -> None:
        self._backends = backends
        self._default = default_backend
        self._policy = policy
        self._images = images
        self._planner = planner
        self._sandboxes = sandboxes
        self._library = library

    async def tiers(self, *, measure: bool) -> list[Tier]:
        """Return all tiers, the default first. With `measure`, create a few real sandboxes on each
        ready one.
        """
        usable = await self._some_image()
        image = usable if isinstance(usable, str) else None
        if self._backends[self._default].capabilities.run_once:
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
            if isinstance(usable, SandkastenError):
                reason = usable.operator_message
                lines.append(_missing("local on an image", "local", reason, usable.hint))
            else:
                lines.append(await self._tier("local on an image", on_image, measure))
            dev = CreateRequest(SandboxOptions(backend="local", image=image, profile="dev"))
            lines.append(await self._tier("local, dev profile", dev, measure))
        named = (name for name, backend in self._backends.items() if backend.capabilities.named_by)
        for name in dict.fromkeys(("oci", "gvisor", *DOCTOR_BACKENDS, *named)):
            if name not in self._backends:
                lines.append(_absent(name))
            elif name != default:
                wanted = CreateRequest(SandboxOptions(backend=name, image=image))
                if self._backends[name].capabilities.external:
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
            readiness = await readiness_of(self._backends[backend])
            if readiness.ready:
                plan = await self._planner.plan(wanted)
                create_ms = await self._create_ms(wanted) if measure else None
        except SandkastenError as exc:
            reason = exc.operator_message
            return _missing(name or backend, backend, reason, exc.hint, default=default)
        if not readiness.ready:
            return _missing(
                name or backend, backend, readiness.reason, readiness.remedy, default=default
            )
        return Tier(
            name=name or backend,
            backend=backend,
            image=plan.spec.image.name,
            profile=plan.spec.profile,
            ready=True,
            default=default,
            tried=measure,
            warnings=_warnings(readiness),
            create_ms=create_ms,
        )

    async def _looked_at(self, name: str) -> Tier:
        """Only probe: planning a sandbox could already copy an image to the platform."""
        readiness = await readiness_of(self._backends[name])
        if not readiness.ready:
            return _missing(name, name, readiness.reason, readiness.remedy)
        return Tier(name=name, backend=name, ready=True, warnings=_warnings(readiness))

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

    async def _some_image(self) -> str | SandkastenError:
        """Return the name of an image that has layers, not the host image, or why there is none."""
        refusal: SandkastenError = ImageNotFound(_NO_IMAGE, hint=_GET_IMAGE)
        default: str | None = self._policy.default_image
        usual: tuple[str, ...] = _USUAL_IMAGES if default is None else (default, *_USUAL_IMAGES)
        stored = () if self._library is None else await self._library.list()
        newest = sorted(stored, key=lambda stored_image: -stored_image.created_at)
        names = [name for image in newest for name in (image.names or (image.id,))]
        for name in dict.fromkeys((*usual, *names)):
            try:
                # Nothing is pulled for an examination.
                image = await self._images.resolve(name, fetch=False)
            except SandkastenError as exc:
                if name in names:
                    refusal = exc
                continue
            if image.kind == "layers":
                return name
        return refusal


def _warnings(readiness: Readiness) -> tuple[Requirement, ...]:
    return tuple(
        requirement
        for requirement in readiness.requirements
        if not requirement.ok and not requirement.required
    )


def _absent(backend: str) -> Tier:
    """Report a backend that this engine was opened without: of a plugin, or left out."""
    extra = SECTION_EXTRAS.get(f"backends.{backend}")
    if extra is None:
        reason = f"this engine has no backend named {backend}"
        return _missing(backend, backend, reason, f"open it with {backend} among its backends")
    reason = f"this engine has no backend named {backend}, which the extra {extra} provides"
    return _missing(backend, backend, reason, install_command(extra))


def _missing(name: str, backend: str, reason: str, remedy: str, *, default: bool = False) -> Tier:
    return Tier(
        name=name, backend=backend, ready=False, reason=reason, remedy=remedy, default=default
    )
