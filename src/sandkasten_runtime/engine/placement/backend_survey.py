"""Report what each backend can do and whether it is ready. Creates no sandbox of a client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.backends.backend_features import BackendReport, features_here
from sandkasten.model.sandbox.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten_runtime.engine.placement.named_backend_choice import NamedBackendChoice

# A probe makes at most one trial sandbox, which takes seconds on a busy machine.
_PROBE_TIMEOUT_S: Final = 60.0


class BackendSurvey:
    def __init__(
        self,
        backends: Mapping[str, Backend],
        default_backend: str,
        named_backends: NamedBackendChoice | None = None,
    ) -> None:
        """`named_backends` knows their labels, and how many sandboxes there are."""
        self._backends = backends
        self._default = default_backend
        self._named_backends = named_backends

    async def reports(self) -> list[BackendReport]:
        """Probe every backend, all at once; the default is first."""
        ranked = sorted(self._backends.values(), key=lambda backend: backend.name != self._default)
        probes = await asyncio.gather(*(readiness_of(backend) for backend in ranked))
        reports = [
            BackendReport(
                name=backend.name,
                default=backend.name == self._default,
                isolation=backend.capabilities.isolation,
                ready=readiness.ready,
                reason=readiness.reason,
                remedy=readiness.remedy,
                features=features_here(backend.capabilities.features, readiness),
                unenforced=readiness.unenforced,
            )
            for backend, readiness in zip(ranked, probes, strict=True)
        ]
        if self._named_backends is None:
            return reports
        return await self._named_backends.described(reports)


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
