"""The kubernetes backend: a Pod of a cluster for each sandbox.

Knows isolation and nothing else: where a Pod runs, and what becomes of it when its node is lost, is
decided by Kubernetes. The Pod and the Secret with its key have the name of the sandbox, so a create
that is repeated after a crash finds what the first one made. Nothing about a sandbox is kept on our
disk; every daemon with the same installation name can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from sandkasten.disk.atomic_file import create_file
from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    BackendUnavailable,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_kubernetes import (
    agent_sandboxes,
    cluster_requirements,
    object_creation,
    object_removal,
    object_watch,
    pod_manifest,
    pod_names,
    pod_network,
    pod_status,
    refusals,
    selftest,
    workspace_manifest,
)
from sandkasten_kubernetes.api import cluster_access
from sandkasten_kubernetes.api.cluster_client import ApiRefused, ClusterClient
from sandkasten_kubernetes.capabilities import kubernetes_capabilities
from sandkasten_kubernetes.cell import UNENFORCED, KubernetesCell, Ways
from sandkasten_kubernetes.kept_claims import KeptClaims
from sandkasten_kubernetes.network import pod_egress
from sandkasten_kubernetes.network.networked_cell import NetworkedCell
from sandkasten_runtime.backends.gate import entry_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

_UNDO_S: Final = 15.0
_OWNER_BYTES: Final = 8
_ATTEMPT_BYTES: Final = 8


class KubernetesBackend:
    """The sandboxes of one namespace. Implements Backend, KeepsImages, KeepsWorkspaces,
    MaintainsWorkspaces, Remote and RefusesNetworks.

    `read` returns the content of a YAML file.
    """

    def __init__(
        self,
        data_dir: Path,
        options: KubernetesOptions,
        read: Callable[[Path], object],
        client: ClusterClient | None = None,
    ) -> None:
        self._home = data_dir / self.name
        self._options = options
        self._read = read
        self._client = client or ClusterClient(self._access, options.namespace, options.timeout_s)
        self._ways = Ways(options)
        self._sandboxes = agent_sandboxes.AgentSandboxes(self._client, options)
        self._kept = KeptClaims(self._client, options, self._whose)
        self._owner = options.installation
        self._removal = object_removal.ObjectRemoval(self._client, self._sandboxes, self._whose)
        self._cells: WeakSet[KubernetesCell] = WeakSet()
        self._trying = asyncio.Lock()
        self._tried: set[str] = set()
        self._failed_trials: dict[str, SandkastenError] = {}

    @property
    def name(self) -> str:
        return "kubernetes"

    @property
    def capabilities(self) -> Capabilities:
        return kubernetes_capabilities(self._options)

    def within(self, namespace: str) -> KubernetesBackend:
        """Return the same for another namespace, with the same connections."""
        return KubernetesBackend(
            self._home.parent,
            replace(self._options, namespace=namespace),
            self._read,
            self._client.within(namespace),
        )

    def _access(self) -> cluster_access.ClusterAccess:
        options = self._options
        if options.kubeconfig is not None:
            return cluster_access.from_kubeconfig(
                options.kubeconfig, options.context, self._read, os.environ
            )
        return cluster_access.in_cluster(os.environ)

    # ---- the verbs

    async def probe(self) -> Readiness:
        try:
            lines = await cluster_requirements.of_cluster(self._client, self._options)
            lines += await self.permissions()
        except SandkastenError as exc:
            lines = [Requirement("API server", False, exc.operator_message, exc.hint)]
        bad = next((line for line in lines if line.required and not line.ok), None)
        return Readiness(
            bad is None,
            "" if bad is None else f"{bad.name}: {bad.state}",
            "" if bad is None else bad.remedy,
            tuple(lines),
            UNENFORCED,
        )

    async def permissions(self) -> list[Requirement]:
        """Return what `doctor` shows of the namespace. Raise BackendUnavailable."""
        return await cluster_requirements.of_namespace(
            self._client, self._options, self._sandboxes, self._kept.needed
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> KubernetesCell:
        refusals.check(spec, self._options)
        await self._try_first(sandbox_id, spec)
        attempt = _new_attempt()
        making = asyncio.ensure_future(self._create(sandbox_id, spec, attempt))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.cancel()
            with contextlib.suppress(SandkastenError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_UNDO_S):
                    cell = await making
                # It was quicker than the cancellation.
                cell.forget()
                await cell.let_go()
                await self._undo(sandbox_id, attempt)
            raise

    async def attach(self, sandbox_id: SandboxId) -> KubernetesCell:
        try:
            pod = await self._client.get("pods", pod_names.pod_name(sandbox_id))
            if not await self._removal.is_mine(pod):
                raise pod_status.lost(sandbox_id, "another installation has a Pod of its name")
            error = pod_status.gone(sandbox_id, await object_watch.explained(self._client, pod))
            if error is not None:
                raise error
        except ApiRefused as exc:
            if exc.not_there:
                raise pod_status.lost(sandbox_id, "its Pod is gone") from exc
            raise refusals.translated(exc, f"sandbox {sandbox_id} cannot be looked at") from exc
        return self._cell(sandbox_id, pod)

    async def owned(self) -> Sequence[SandboxId]:
        try:
            resources = await self._objects(pod_names.selector(await self._whose()))
        except ApiRefused as exc:
            raise refusals.translated(exc, "our objects cannot be listed") from exc
        # What Kubernetes is removing already, it finishes without us.
        ids = {_id(resource) for resource in resources if not pod_status.is_ending(resource)}
        return sorted(sandbox_id for sandbox_id in ids if sandbox_id is not None)

    async def holds(self, sandbox_id: SandboxId) -> bool:
        """Return whether the namespace has anything of a sandbox, or of trials for it."""
        selector = pod_names.selector(await self._whose(), sandbox_id)
        try:
            return bool(await self._objects(selector))
        except ApiRefused as exc:
            raise refusals.translated(exc, f"sandbox {sandbox_id} cannot be looked for") from exc

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove what is left of a dead sandbox, and of trials for it."""
        await self._remove(sandbox_id)
        selector = pod_names.selector(await self._whose(), sandbox_id)
        try:
            resources = await self._objects(selector)
            for name in {resource["metadata"]["name"] for resource in resources}:
                await self._removal.remove(name)
        except ApiRefused as exc:
            raise refusals.translated(exc, f"sandbox {sandbox_id} could not be removed") from exc

    async def _objects(self, selector: str) -> list[Mapping[str, Any]]:
        """Return those of all kinds: a create may have been interrupted after any of them."""
        return [
            *await self._client.list("pods", selector),
            *await self._client.list("secrets", selector),
            *await self._sandboxes.list(selector),
        ]

    async def sees_files(self) -> bool:
        """Implement `ports.Remote`."""
        return False

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        """Implement `ports.RefusesNetworks`."""
        return pod_network.refusal(policy, self._options)

    async def keeps_workspaces(self) -> bool:
        """Implement `ports.KeepsWorkspaces`."""
        return self._kept.options is not None

    async def copy_workspace(self, source: str, target: str) -> None:
        await self._kept.copy(source, target)

    async def resize_workspace(self, name: str, size_bytes: int) -> None:
        await self._kept.resize(name, size_bytes)

    async def remove_workspace(self, name: str) -> None:
        await self._kept.remove(name)

    async def has_claim(self, workspace: str) -> bool:
        """Return whether the namespace has a claim for a workspace."""
        return await self._kept.exists(workspace)

    async def interrupted_workspaces(self) -> Sequence[str]:
        return await self._kept.interrupted()

    async def clear_workspace(self, name: str, *, recorded: bool) -> None:
        await self._kept.clear(name, recorded=recorded)

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        """Implement `ports.KeepsImages`: return the last name. Only a Pod that is started shows
        whether an image exists.
        """
        return Image(names[-1], kind="engine") if names else None

    async def bring_image(self, image: Image) -> None:
        raise refusals.store_image(image)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        if mounts:
            raise refusals.mounts()

    async def ping(self) -> None:
        """Do nothing: each request to the API server shows whether it answers."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _try_first(self, sandbox_id: SandboxId, spec: CellSpec) -> None:
        """Try once what sandboxes of a network class are like. Creates that wait for a trial share
        its failure: many that come at once do not try one after the other.
        """
        network = pod_network.network_class(spec.network, self._options)
        before = self._failed_trials.get(network)
        if network in self._tried:
            return
        async with self._trying:
            failed = self._failed_trials.get(network)
            if failed is not None and failed is not before:
                raise _copy(failed)
            if network not in self._tried:
                try:
                    await self._try(sandbox_id, spec)
                except SandkastenError as exc:
                    self._failed_trials[network] = _copy(exc)
                    raise
                self._tried.add(network)

    async def _try(self, sandbox_id: SandboxId, spec: CellSpec) -> None:
        """Verify with temporary Pods that sandboxes are as closed as required. If this process is
        killed, they are found and removed as a part of the sandbox that is being created.
        """
        # Not the image of the caller, whose pull may take minutes: each Pod needs this one anyway.
        image = Image(self._options.runner_image, kind="engine")
        plain = CellSpec(image=image, network=spec.network, ceiling=spec.ceiling)
        cell = await self._create(_trial_id(), plain, _new_attempt(), part_of=sandbox_id)
        try:
            await selftest.examine(cell, pod_names.RUNNER_PATH)
            if self._options.network_policy == "checked":
                await self._try_network(sandbox_id, cell, plain)
        finally:
            await finish(cell.destroy())

    async def _try_network(
        self, sandbox_id: SandboxId, cell: KubernetesCell, spec: CellSpec
    ) -> None:
        """Verify that a Pod reaches no other Pod, nor what belongs to the cluster."""
        program = f"{self._options.programs}/sandkasten-gate"
        other = await self._create(_trial_id(), spec, _new_attempt(), part_of=sandbox_id)
        try:
            addresses = [*await self._client.addresses(), other.address]
            if not spec.network.closed:
                addresses += pod_network.out_of_reach((cell.node, other.node))
            await selftest.examine_network(self._client, cell, program, addresses)
        except ApiRefused as exc:
            raise refusals.translated(exc, "the network cannot be tested") from exc
        finally:
            await finish(other.destroy())

    # ---- one sandbox

    async def _create(
        self,
        sandbox_id: SandboxId,
        spec: CellSpec,
        attempt: str,
        *,
        part_of: SandboxId | None = None,
    ) -> KubernetesCell:
        """`attempt`: the mark of what this create makes, by which it is removed if it fails.
        `part_of`: the sandbox by whose id the objects are found, if it is another one.
        """
        owner = await self._whose()
        keys = await asyncio.to_thread(entry_keys.make_keys, sandbox_id, self.name)
        found_by = {pod_names.LABEL_ID: part_of or sandbox_id}
        content = keys.to_data()
        if pod_network.network_class(spec.network, self._options) == pod_network.RULES:
            content |= pod_egress.secret_files(spec, self._options)
        secret = pod_manifest.secret(sandbox_id, owner, attempt, content)
        secret["metadata"]["labels"].update(found_by)
        manifest = pod_manifest.pod(
            sandbox_id, spec, self._options, owner, attempt, await self._closed_to()
        )
        manifest["metadata"]["labels"].update(found_by)
        if spec.workspace is not None:
            name = spec.workspace.path
            workspace_manifest.mount(manifest, owner, name, self._kept.options)
            await self._kept.prepare(name, spec.limits.workspace_bytes)
        with_sandbox = await self._uses_sandboxes()
        kind, body = "secrets", secret
        if with_sandbox:
            kind, body = agent_sandboxes.KIND, agent_sandboxes.sandbox(manifest, self._options)
        try:
            first = await object_creation.create_first(self._client, sandbox_id, kind, body)
        except asyncio.CancelledError:
            # It may have been made.
            await self._undo(sandbox_id, attempt)
            raise
        try:
            try:
                if with_sandbox:
                    owned = agent_sandboxes.owned_by(first, secret)
                    await object_creation.create_once(self._client, "secrets", owned)
                    pod = await self._sandboxes.released_pod(sandbox_id, first)
                else:
                    pod = await object_creation.create_once(self._client, "pods", manifest)
            except ApiRefused as exc:
                raise refusals.unmade(sandbox_id, exc) from exc
            pod = await self._started(sandbox_id, spec, pod)
            cell = self._cell(sandbox_id, pod, keys)
            try:
                await cell.greet()
            except BaseException:
                await asyncio.shield(cell.let_go())
                raise
        except BaseException as exc:
            # An API server that just failed to answer gets no further requests: the reaper finds
            # what is left by its labels.
            if not (isinstance(exc, BackendUnavailable) and exc.details.get("backend")):
                await finish(self._undo(sandbox_id, attempt))
                if spec.workspace is not None:
                    await self._kept.release(spec.workspace.path)
            raise
        return cell

    async def _undo(self, sandbox_id: SandboxId, attempt: str) -> None:
        """Remove what a create has made, and nothing of another one with the same id."""
        with contextlib.suppress(ApiRefused, SandkastenError, TimeoutError):
            async with asyncio.timeout(_UNDO_S):
                name = pod_names.pod_name(sandbox_id)
                await asyncio.shield(self._removal.remove(name, attempt))

    async def _closed_to(self) -> Sequence[str]:
        """Return what a sandbox must not reach before its runner starts."""
        if self._options.network_policy == "assumed":
            return ()
        return await self._client.addresses()

    async def _uses_sandboxes(self) -> bool:
        try:
            return await self._sandboxes.chosen()
        except ApiRefused as exc:
            raise refusals.translated(exc, "agent-sandbox cannot be looked for") from exc

    async def _started(
        self, sandbox_id: SandboxId, spec: CellSpec, pod: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the Pod when its containers run. Raise why they do not."""
        name = pod_names.pod_name(sandbox_id)
        image = spec.image.name
        following = object_watch.follow(self._client, "pods", pod)
        try:
            async with asyncio.timeout(self._options.start_s), contextlib.aclosing(following):
                async for what, pod in following:
                    if what == "DELETED":
                        raise pod_status.lost(sandbox_id, "its Pod was removed")
                    if pod_status.is_running(pod) and pod_status.address(pod):
                        break
                    error = pod_status.start_error(sandbox_id, image, pod)
                    if error is not None:
                        raise await self._with_words(error, name, pod)
        except TimeoutError as exc:
            late: SandkastenError | None = None
            if spec.workspace is not None:
                late = await self._kept.trouble(spec.workspace.path, pod)
            raise late or pod_status.overdue(sandbox_id, pod, self._options.start_s) from exc
        return pod

    async def _with_words(
        self, error: SandkastenError, name: str, pod: Mapping[str, Any]
    ) -> SandkastenError:
        """Add what the runner wrote before it ended."""
        if not pod_status.end(pod):
            return error
        with contextlib.suppress(ApiRefused, SandkastenError):
            output = " ".join((await self._client.logs(name, pod_names.SANDBOX_CONTAINER)).split())
            if output:
                error.message = f"{error.message}: {output[:300]}"
                error.args = (error.message,)
        return error

    def _cell(
        self,
        sandbox_id: SandboxId,
        pod: Mapping[str, Any],
        keys: entry_keys.EntryKeys | None = None,
    ) -> KubernetesCell:
        by_rule = pod_status.network_class(pod) == pod_network.RULES
        cell = (NetworkedCell if by_rule else KubernetesCell)(
            sandbox_id, self._client, self._options, self._ways, pod, keys, self._remove
        )
        self._cells.add(cell)
        return cell

    async def _remove(self, sandbox_id: SandboxId) -> None:
        """Remove the Pod and its Secret, and wait until the Pod is gone. Twice is fine."""
        cells = [cell for cell in self._cells if cell.id == sandbox_id]
        for cell in cells:
            cell.forget()
            await cell.let_go()
        try:
            await self._removal.remove(pod_names.pod_name(sandbox_id))
        except ApiRefused as exc:
            raise refusals.translated(exc, f"sandbox {sandbox_id} could not be removed") from exc

    async def _whose(self) -> str:
        """Return the owner label of this installation's objects."""
        if not self._owner:
            self._owner = await asyncio.to_thread(_owner_in, self._home)
        return self._owner


def _id(resource: Mapping[str, Any]) -> SandboxId | None:
    labels = (resource.get("metadata") or {}).get("labels") or {}
    return pod_names.id_in(labels.get(pod_names.LABEL_ID))


def _copy(error: SandkastenError) -> SandkastenError:
    """Copy the error: one that is raised in several tasks would collect their tracebacks."""
    return type(error)(error.message, hint=error.hint, **error.details)


def _new_attempt() -> str:
    return secrets.token_hex(_ATTEMPT_BYTES)


def _trial_id() -> SandboxId:
    return SandboxId(selftest.TRIAL + secrets.token_hex(_ATTEMPT_BYTES))


def _owner_in(home: Path) -> str:
    """Return the name that this data directory has; make one up the first time."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = home / "owner"
        # If two processes start at once, both use what the first one wrote.
        create_file(path, secrets.token_hex(_OWNER_BYTES).encode())
        return path.read_text().strip()
    except OSError as exc:
        raise BackendUnavailable(
            f"the data directory cannot be used: {exc}",
            hint="check free space and permissions, or set SANDKASTEN_DATA_DIR",
        ) from exc
