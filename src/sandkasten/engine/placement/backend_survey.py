"""Report what each backend can do and whether it is ready. Creates no sandbox of a client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.backends.backend_features import BackendReport, features_here
from sandkasten.model.sandbox.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.engine.placement.docker_engine_choice import DockerEngineChoice
    from sandkasten.ports import Backend

# A probe makes at most one trial sandbox, which takes seconds on a busy machine.
_PROBE_TIMEOUT_S: Final = 60.0


class BackendSurvey:
    def __init__(
        self,
        backends: Mapping[str, Backend],
        default_backend: str,
        engines: DockerEngineChoice | None = None,
    ) -> None:
        """`engines` knows named Docker Engines, and how many sandboxes there are."""
        self._backends = backends
        self._default = default_backend
        self._engines = engines

    async def reports(self) -> list[BackendReport]:
        """Probe every backend, all at once; the default is first."""
        ranked = sorted(self._backends.values(), key=lambda one: one.name != self._default)
        found = await asyncio.gather(*(readiness_of(one) for one in ranked))
        reports = [
            BackendReport(
                name=backend.name,
                default=backend.name == self._default,
                isolation=backend.capabilities.isolation,
                ready=one.ready,
                reason=one.reason,
                remedy=one.remedy,
                features=features_here(backend.capabilities.features, one),
                unenforced=one.unenforced,
            )
            for backend, one in zip(ranked, found, strict=True)
        ]
        return reports if self._engines is None else await self._engines.described(reports)


async def readiness_of(backend: Backend) -> Readiness:
    """Return the result of a probe; an error and a missing answer are findings too."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return await backend.probe()
    except TimeoutError:
        return Readiness(
            ready=False,
            reason=f"it did not answer within {_PROBE_TIMEOUT_S:g} s",
            remedy="check whether its runtime or engine hangs, then run sandkasten doctor again",
        )
    except SandkastenError as exc:
        return Readiness(ready=False, reason=exc.operator_message, remedy=exc.hint)
