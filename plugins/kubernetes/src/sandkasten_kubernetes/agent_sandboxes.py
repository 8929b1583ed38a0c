"""Sandbox objects of agent-sandbox (agents.x-k8s.io), whose controller makes our Pods.

A Sandbox has our Pod as its template, and owns the Pod and the Secret: when its `shutdownTime` has
come, or when it is deleted, the cluster removes all three without a daemon.

The controller replaces a Pod that is gone. A session is never replaced, so each Pod is made with a
scheduling gate, and the daemon that creates the sandbox removes the gate of one Pod. Any later Pod
keeps its gate, and nothing of it runs. Decision 29 has the reasons, and says why the warm pools of
agent-sandbox are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_kubernetes import object_watch, pod_names, pod_status
from sandkasten_kubernetes.api.cluster_client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten_kubernetes.api.cluster_client import ClusterClient
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

KIND: Final = "sandboxes"
_VERSION: Final = "agents.x-k8s.io/v1beta1"
_HAS_POD: Final = "agents.x-k8s.io/pod-name"
_FAILED: Final = "ReconcilerError"
_FORBIDDEN, _INVALID = 403, 422
_NEEDED: Final = (
    *((verb, KIND) for verb in ("create", "get", "list", "watch", "delete")),
    ("patch", "pods"),
)
_ROLE_HINT: Final = "add the rules for agent-sandbox in docs/guides/kubernetes.md to the Role"


class AgentSandboxes:
    """Whether the cluster's Sandbox objects are used, and how a Pod is got from one."""

    def __init__(self, client: ClusterClient, options: KubernetesOptions) -> None:
        self._client = client
        self._options = options
        self._used: bool | None = None if options.agent_sandbox != "never" else False

    async def used(self) -> bool:
        """Return whether sandboxes are made this way. Found out once."""
        if self._used is None:
            self._used, _ = await self._found()
        return self._used

    async def chosen(self) -> bool:
        """Return the same for a new sandbox. Raise BackendUnavailable if the setting requires it
        and it is not possible.
        """
        if await self.used() or self._options.agent_sandbox != "require":
            return bool(self._used)
        # The operator may have installed it since.
        self._used, line = await self._found()
        if not self._used:
            raise BackendUnavailable(
                f"backends.kubernetes.agent_sandbox is require, and agent-sandbox is {line.state}",
                hint=line.remedy,
                backend="kubernetes",
            )
        return True

    async def requirement(self) -> Requirement:
        """Return what `doctor` shows. Raise ApiRefused if the cluster refuses to answer."""
        return (await self._found())[1]

    async def list(self, selector: str) -> Sequence[Mapping[str, Any]]:
        """Return the Sandbox objects with these labels."""
        if not await self.used():
            return ()
        try:
            return await self._client.list(KIND, selector)
        except ApiRefused as exc:
            if exc.not_there:
                # The operator has removed the kind, and all objects with it.
                return ()
            raise

    async def _found(self) -> tuple[bool, Requirement]:
        """Return whether Sandbox objects can be used, and the same in words."""
        name, required = "agent-sandbox", self._options.agent_sandbox == "require"
        if self._options.agent_sandbox == "never":
            return False, Requirement(name, True, "not used", required=False)
        if not await self._client.serves(KIND):
            state = f"not installed: the cluster has no {_VERSION}"
            remedy = "install agent-sandbox, or set backends.kubernetes.agent_sandbox: auto"
            return False, Requirement(name, not required, state, remedy, required=required)
        missing = [
            f"{verb} {kind}" for verb, kind in _NEEDED if not await self._client.may(verb, kind)
        ]
        if missing:
            state = f"installed, and not used; missing: {', '.join(missing)}"
            return False, Requirement(name, False, state, _ROLE_HINT, required=required)
        return True, Requirement(name, True, f"used: {_VERSION}", required=required)

    async def released_pod(
        self, sandbox_id: SandboxId, sandbox: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Wait until the controller has made the Pod, remove its gate, and return it.

        Raise ApiRefused with the reason if the controller could not make it.
        """
        reason = ""
        following = object_watch.follow(self._client, KIND, sandbox)
        try:
            async with asyncio.timeout(self._options.start_s), contextlib.aclosing(following):
                async for what, resource in following:
                    if what == "DELETED":
                        raise pod_status.lost(sandbox_id, "its Sandbox object was removed")
                    if _HAS_POD in ((resource.get("metadata") or {}).get("annotations") or {}):
                        break
                    reason = _failure(resource)
                    _refuse(reason)
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"the controller of agent-sandbox made no Pod for sandbox {sandbox_id} within "
                f"{self._options.start_s:g} s{f': {reason}' if reason else ''}",
                hint="check the controller, or set backends.kubernetes.agent_sandbox: never",
            ) from exc
        open_gates = {"spec": {"schedulingGates": None}}
        return await self._client.change("pods", pod_names.pod_name(sandbox_id), open_gates)


def sandbox(pod: Mapping[str, Any], options: KubernetesOptions) -> dict[str, Any]:
    """Return the Sandbox that makes this Pod."""
    # The node ends the Pod first, which says why.
    life = datetime.timedelta(seconds=options.lifetime_s + 2 * options.start_s)
    until = datetime.datetime.now(datetime.UTC) + life
    metadata = pod["metadata"]
    return {
        "apiVersion": _VERSION,
        "kind": "Sandbox",
        "metadata": {
            "name": metadata["name"],
            "labels": dict(metadata["labels"]),
            "annotations": {pod_names.ATTEMPT: metadata["annotations"][pod_names.ATTEMPT]},
        },
        "spec": {
            "podTemplate": {
                "metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]},
                "spec": {**pod["spec"], "schedulingGates": [{"name": pod_names.START_GATE}]},
            },
            "service": False,
            "shutdownTime": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "shutdownPolicy": "Delete",
        },
    }


def owned_by(sandbox: Mapping[str, Any], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that the cluster removes with the Sandbox."""
    metadata = sandbox["metadata"]
    owner = {
        "apiVersion": _VERSION,
        "kind": "Sandbox",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "blockOwnerDeletion": False,
    }
    return {**resource, "metadata": {**resource["metadata"], "ownerReferences": [owner]}}


def has_sandbox(resource: Mapping[str, Any]) -> bool:
    """Return whether a Pod or a Secret belongs to a Sandbox."""
    owners = (resource.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("kind") == "Sandbox" for owner in owners)


def _failure(resource: Mapping[str, Any]) -> str:
    for condition in (resource.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("reason") == _FAILED:
            return " ".join(str(condition.get("message") or "").split())
    return ""


def _refuse(message: str) -> None:
    """Raise what the API server answered the controller, if another try cannot help."""
    if " is forbidden: " in message:
        raise ApiRefused(_FORBIDDEN, "Forbidden", message)
    if " is invalid: " in message:
        raise ApiRefused(_INVALID, "Invalid", message)
