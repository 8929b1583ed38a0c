"""Checks of a request before anything is made for it: what `create` and `run` would refuse.

For callers to whom a late refusal is expensive, such as a run that asks a model first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.model.sandbox.sandbox_values import CreateRequest

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.oneshot_values import RunRequest
    from sandkasten.model.sandbox.sandbox_options import SandboxOptions
    from sandkasten.model.sandbox.session_joins import JoinTerms, SessionShape
    from sandkasten.ports import Sites
    from sandkasten_runtime.engine.lifecycle.planner import Planner
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.oneshot.oneshot import OneShot


class Preflight:
    def __init__(
        self, planner: Planner, sandboxes: Sandboxes, oneshot: OneShot, sites: Sites
    ) -> None:
        self._planner = planner
        self._sandboxes = sandboxes
        self._oneshot = oneshot
        self._sites = sites

    async def session(
        self,
        request: CreateRequest,
        *,
        terms: JoinTerms | None = None,
        joins_id: SandboxId | None = None,
    ) -> None:
        """Raise what `Engine.create` would raise; missing images and packages are fetched.

        `joins_id` names the session to be joined, whatever its key is.
        """
        await self._sandboxes.check(request, sites=self._sites, terms=terms, joins_id=joins_id)

    async def shape(self, request: CreateRequest) -> SessionShape:
        """Return what a session of this request would have; nothing is fetched."""
        return await self._planner.shape(request)

    async def run(self, request: RunRequest) -> None:
        """Raise what `Engine.run` would raise; missing images and packages are fetched."""
        await self._oneshot.check(request)

    async def image(self, options: SandboxOptions, runtime: str | None = None) -> bool:
        """Return whether the image of a session, or of a one-shot with this runtime, is here.

        False: it is fetched when it is needed. Fetches nothing; raises what the operator forbids
        and what cannot be fetched.
        """
        if runtime is None:
            return await self._planner.find_image(CreateRequest(options))
        return await self._oneshot.find_image(options, runtime)
