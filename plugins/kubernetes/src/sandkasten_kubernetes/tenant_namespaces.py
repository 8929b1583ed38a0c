"""The namespaces of a cluster that have our sandboxes: one, or further ones for some tenants.

Each namespace has a KubernetesBackend, with its own trial, and all share the connections to the API
server. A sandbox stays where it was made, whatever the settings say later; the row in the ledger
says where that is (`note_place`). One that is not known is looked for in all namespaces. A
namespace that we cannot use raises its own errors, and does not affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.access.tenancy import unscoped
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten.model.sandbox.workspace import plain_name
from sandkasten_kubernetes import pod_status
from sandkasten_kubernetes.backend import KubernetesBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten_kubernetes.cell import KubernetesCell
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions


class TenantNamespaces:
    """Implements Places, and what KubernetesBackend does. The place of a sandbox is the name of its
    namespace; an empty one is `options.namespace`.
    """

    def __init__(
        self, data_dir: Path, options: KubernetesOptions, read: Callable[[Path], object]
    ) -> None:
        self._options = options
        self._root = KubernetesBackend(data_dir, options, read)
        self._backends: dict[str, KubernetesBackend] = {}
        """Backends by namespace: those of the settings, and those that older sandboxes need."""
        self._named = tuple(dict.fromkeys((options.namespace, *options.tenant_namespaces.values())))
        self._places: dict[SandboxId, str] = {}
        """Where sandboxes were made or seen; `owned` forgets those that are gone."""

    @property
    def name(self) -> str:
        return self._root.name

    @property
    def capabilities(self) -> Capabilities:
        return self._root.capabilities

    # ---- places

    def note_place(self, sandbox_id: SandboxId, place: str) -> None:
        self._places[sandbox_id] = place

    def _at(self, place: str) -> KubernetesBackend:
        if place in ("", self._options.namespace) and len(self._named) == 1:
            # Errors of the only namespace are errors of the backend.
            return self._root
        namespace = place or self._options.namespace
        if namespace not in self._backends:
            self._backends[namespace] = self._root.within(namespace)
        return self._backends[namespace]

    # ---- the verbs

    async def probe(self) -> Readiness:
        """A tenant's namespace that cannot be used is shown, and keeps nothing else waiting."""
        report = await self._root.probe()
        if not report.requirements[0].ok:
            # The API server does not answer.
            return report
        shown = {requirement.name: requirement.state for requirement in report.requirements}
        tenants = [tenant for tenant in self._named if tenant != self._options.namespace]
        parts = await asyncio.gather(*(self._permissions(tenant, shown) for tenant in tenants))
        more = (requirement for part in parts for requirement in part)
        return replace(report, requirements=(*report.requirements, *more))

    async def _permissions(self, namespace: str, shown: dict[str, str]) -> list[Requirement]:
        """Return the permissions in a tenant's namespace, and what is different there."""
        try:
            lines = await self._at(namespace).permissions()
        except BackendUnavailable as exc:
            lines = [Requirement("permissions", False, exc.operator_message, exc.hint)]
        return [
            replace(requirement, name=f"{requirement.name} in {namespace}", required=False)
            for requirement in lines
            if requirement.name == "permissions" or requirement.state != shown.get(requirement.name)
        ]

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> KubernetesCell:
        if spec.workspace is not None:
            await self._check_here(spec.workspace.path, spec.place)
        self._places[sandbox_id] = spec.place
        return await self._at(spec.place).create(sandbox_id, spec)

    async def attach(self, sandbox_id: SandboxId) -> KubernetesCell:
        place = await self._found(sandbox_id)
        if place is None:
            raise pod_status.lost(sandbox_id, "its Pod is gone")
        try:
            return await self._at(place).attach(sandbox_id)
        except BackendUnavailable as exc:
            if self._is_given_up(place, exc):
                why = f"the settings do not name its namespace {place}, and we have no rights there"
                raise pod_status.lost(sandbox_id, why) from exc
            raise

    async def owned(self) -> Sequence[SandboxId]:
        """Leave out the namespaces that cannot be listed, and raise if none can."""
        places = dict(self._places)
        listings = (self._at(tenant).owned() for tenant in self._named)
        results = await asyncio.gather(*listings, return_exceptions=True)
        owned: dict[SandboxId, str] = {}
        failures: list[BaseException] = []
        for namespace, ids in zip(self._named, results, strict=True):
            if isinstance(ids, BaseException):
                failures.append(ids)
            else:
                owned |= dict.fromkeys(ids, namespace)
        for failure in failures:
            if len(failures) == len(self._named) or not isinstance(failure, BackendUnavailable):
                raise failure
        for sandbox_id, place in places.items():
            listed = place in self._named or not place
            if listed and not failures and sandbox_id not in owned:
                self._places.pop(sandbox_id, None)
        self._places |= owned
        return sorted(owned)

    async def discard(self, sandbox_id: SandboxId) -> None:
        place = await self._found(sandbox_id)
        if place is not None:
            try:
                await self._at(place).discard(sandbox_id)
            except BackendUnavailable as exc:
                if not self._is_given_up(place, exc):
                    raise
        self._places.pop(sandbox_id, None)

    def _is_given_up(self, place: str, exc: BackendUnavailable) -> bool:
        """Return whether the operator has taken both the name and the rights of a namespace away:
        waiting for its sandboxes would never end.
        """
        return bool(place and place not in self._named and exc.details.get("place"))

    async def _found(self, sandbox_id: SandboxId) -> str | None:
        """Return the place of a sandbox; None if no namespace has it. Raise BackendUnavailable if
        one that may have it does not answer.
        """
        cached = self._places.get(sandbox_id)
        if cached is not None or len(self._named) == 1:
            return cached or ""
        checks = (self._at(tenant).holds(sandbox_id) for tenant in self._named)
        results = await asyncio.gather(*checks, return_exceptions=True)
        for namespace, holds in zip(self._named, results, strict=True):
            if holds is True:
                self._places[sandbox_id] = namespace
                return namespace
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        return None

    # ---- named workspaces, which are in the namespace of their tenant

    async def keeps_workspaces(self) -> bool:
        return await self._root.keeps_workspaces()

    async def copy_workspace(self, source: str, target: str) -> None:
        await self._check_here(source, self.capabilities.place(unscoped(source)[0]))
        await self._of_workspace(source).copy_workspace(source, target)

    async def resize_workspace(self, name: str, size_bytes: int) -> None:
        await self._check_here(name, self.capabilities.place(unscoped(name)[0]))
        await self._of_workspace(name).resize_workspace(name, size_bytes)

    async def remove_workspace(self, name: str) -> None:
        await self._of_workspace(name).remove_workspace(name)
        if await self._left_behind(name, self.capabilities.place(unscoped(name)[0])):
            await self._at("").remove_workspace(name)

    async def interrupted_workspaces(self) -> Sequence[str]:
        names: set[str] = set()
        for tenant in self._named:
            with contextlib.suppress(BackendUnavailable):
                names.update(await self._at(tenant).interrupted_workspaces())
        return sorted(names)

    async def clear_workspace(self, name: str, *, recorded: bool) -> None:
        await self._of_workspace(name).clear_workspace(name, recorded=recorded)

    def _of_workspace(self, name: str) -> KubernetesBackend:
        return self._at(self.capabilities.place(unscoped(name)[0]))

    async def _left_behind(self, name: str, place: str) -> bool:
        """Return whether the claim of a workspace is where its tenant was before it got a namespace
        of its own.
        """
        return place not in ("", self._options.namespace) and await self._at("").has_claim(name)

    async def _check_here(self, name: str, place: str) -> None:
        """Raise UnsupportedByBackend for a workspace that Pods of this place cannot mount."""
        if await self._left_behind(name, place):
            raise UnsupportedByBackend(
                f"workspace {plain_name(name)} is in the namespace that its tenant had before, and "
                f"not in {place}",
                hint="use another workspace, or delete it; "
                "backends.kubernetes.tenant_namespaces says where a tenant is",
                workspace=plain_name(name),
            )

    # ---- the same in every namespace

    async def sees_files(self) -> bool:
        return await self._root.sees_files()

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        return await self._root.network_refusal(policy)

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        return await self._root.find_image(names, fetch=fetch)

    async def bring_image(self, image: Image) -> None:
        await self._root.bring_image(image)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        await self._root.bring_contents(mounts)

    async def ping(self) -> None:
        await self._root.ping()

    async def aclose(self) -> None:
        for backend in (*self._backends.values(), self._root):
            await backend.aclose()
