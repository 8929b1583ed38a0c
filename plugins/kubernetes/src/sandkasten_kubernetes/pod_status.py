"""What the status of a Pod means for its sandbox: starting, running, or ended and why. Pure.

A status comes from the cluster and may lack any field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    ImageNotFound,
    InvalidImage,
    IsolationRefused,
    RegistryUnavailable,
    SandboxLost,
    SandkastenError,
    Unauthorized,
)
from sandkasten.model.spelling import one_line
from sandkasten_kubernetes import pod_names, pod_network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten.model.ids import SandboxId

# A failed pull names the image and its URL several times, and the cause at the end.
_SAID_CHARS: Final = 600
_PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
_NOT_PULLED: Final = "ErrImageNeverPull"
_INVALID: Final = ("InvalidImageName", "ImageInspectError")
_UNSTARTED: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
    "CreatePodSandboxError",
)
_DENIED: Final = ("denied", "unauthorized", "authentication required", "403", "401")
_UNKNOWN: Final = ("not found", "manifest unknown", "does not exist", "not exist")
_ENDED: Final = ("Succeeded", "Failed")
_OUT_OF_MEMORY: Final = "OOMKilled"
# The exit status of such a gate (runner/src/proxy/reachability.rs).
_STAYED_OPEN: Final = 77
_OURS: Final = (pod_names.GATE_CONTAINER, pod_names.EGRESS_CONTAINER)
_LOST: Final = {
    "Evicted": "its node evicted it",
    "DeadlineExceeded": "it reached the hard end of its life",
    "NodeLost": "its node is lost",
    "NodeShutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Preempting": "a Pod of a higher priority took its place",
    "UnexpectedAdmissionError": "its node refused it",
    "OutOfcpu": "its node has no processor left for it",
    "OutOfmemory": "its node has no memory left for it",
    "OutOfpods": "its node has too many Pods",
}
# The reasons of the condition DisruptionTarget.
_DISRUPTED: Final = {
    "DeletionByTaintManager": "its node is lost, or has a taint that sandboxes do not tolerate",
    "DeletionByPodGC": "its node was removed from the cluster",
    "EvictionByEvictionAPI": "it was evicted from its node",
    "PreemptionByScheduler": "a Pod of a higher priority took its place",
    "TerminationByKubelet": "its node evicted it",
}


def address(pod: Mapping[str, Any]) -> str:
    """Return the Pod's address; empty if it has none yet."""
    return str(_status(pod).get("podIP") or "")


def node_address(pod: Mapping[str, Any]) -> str:
    """Return the address of the Pod's node; empty if it has none yet."""
    return str(_status(pod).get("hostIP") or "")


def network_class(pod: Mapping[str, Any]) -> str:
    """Return the class of the Pod's network; see `pod_network`."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(pod_names.LABEL_NETWORK) or pod_network.CLOSED)


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether both containers run and nothing ends the Pod."""
    if is_ending(pod) or _status(pod).get("phase") != "Running":
        return False
    running = {
        str(container.get("name"))
        for container in _containers(pod)
        if "running" in _state(container)
    }
    return {pod_names.SANDBOX_CONTAINER, pod_names.GATE_CONTAINER} <= running


def is_ending(pod: Mapping[str, Any]) -> bool:
    """Return whether the Pod was asked to end. One whose node does not answer stays so."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def end(pod: Mapping[str, Any]) -> str:
    """Return why the Pod has ended; empty if it has not."""
    status = _status(pod)
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    if any(gate.get("name") == pod_names.START_GATE for gate in gates):
        return "its Pod is gone, and agent-sandbox made another one, which is not started"
    reason = str(status.get("reason") or "")
    cause = _LOST.get(reason, "")
    disrupted = condition(pod, "DisruptionTarget") or {}
    ended = _sandbox_ended(pod)
    if ended is not None:
        if ended.get("reason") == _OUT_OF_MEMORY:
            return "it used more memory than its limit and was ended"
        cause = cause or _ended(pod_names.SANDBOX_CONTAINER, ended)
    if status.get("phase") in _ENDED or reason in _LOST:
        return _joined(cause or f"its Pod has ended ({reason or status.get('phase')})", status)
    if is_ending(pod):
        why = _DISRUPTED.get(str(disrupted.get("reason") or ""), "its Pod is being removed")
        return _joined(why, disrupted)
    return cause


def is_unexplained(pod: Mapping[str, Any]) -> bool:
    """Return whether the sandbox has ended, and its node may yet report why.

    A kubelet that evicts a Pod reports the end of its containers first. The phase and the reason
    follow when all of them have ended.
    """
    ended = _sandbox_ended(pod)
    return (
        ended is not None
        and ended.get("reason") != _OUT_OF_MEMORY
        and _status(pod).get("phase") not in _ENDED
        and not _status(pod).get("reason")
    )


def _sandbox_ended(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in _containers(pod):
        ended: Mapping[str, Any] | None = _state(container).get("terminated")
        if ended is not None and container.get("name") == pod_names.SANDBOX_CONTAINER:
            return ended
    return None


def gone(sandbox_id: SandboxId, pod: Mapping[str, Any]) -> SandboxLost | None:
    """Return the error for a Pod that has ended; None if it has not."""
    why = end(pod)
    if not why:
        return None
    error = lost(sandbox_id, why)
    by_itself = not is_ending(pod) and str(_status(pod).get("reason") or "") not in _LOST
    if by_itself and _sandbox_ended(pod) is not None:
        error.details["status"] = "crashed"
    return error


def stayed_open(sandbox_id: SandboxId, pod: Mapping[str, Any]) -> IsolationRefused | None:
    """Return the error for a Pod whose gate gave up, because the network was not closed."""
    for container in _containers(pod):
        ended = _state(container).get("terminated") or {}
        if container.get("name") in _OURS and ended.get("exitCode") == _STAYED_OPEN:
            return IsolationRefused(
                f"sandbox {sandbox_id} was not started: {_said(ended) or 'its network is open'}",
                hint=pod_network.policy_hint(network_class(pod)),
            )
    return None


def lost(sandbox_id: SandboxId, why: str) -> SandboxLost:
    return SandboxLost(f"sandbox {sandbox_id} is gone: {why}", hint="create a new one", reason=why)


def start_error(
    sandbox_id: SandboxId, image: str, pod: Mapping[str, Any]
) -> SandkastenError | None:
    """Return why the Pod cannot start; None while it still may."""
    open_network = stayed_open(sandbox_id, pod)
    if open_network is not None:
        return open_network
    for container in _containers(pod):
        waiting = _state(container).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), _said(waiting)
        whose = str(container.get("image") or "") or image
        if container.get("name") != pod_names.SANDBOX_CONTAINER and reason in (
            *_PULLING,
            _NOT_PULLED,
            *_INVALID,
        ):
            return BackendUnavailable(
                f"the cluster cannot pull {whose}, which has the runner: {message or reason}",
                hint="check backends.kubernetes.runner_image and backends.kubernetes.pull_secrets",
            )
        if reason in _PULLING:
            return _unpulled(image, message or reason)
        if reason == _NOT_PULLED:
            return ImageNotFound(
                f"the node does not have image {image}, and may not pull it",
                hint="load it on every node, or set backends.kubernetes.pull_policy: IfNotPresent",
                image=image,
            )
        if reason in _INVALID:
            return InvalidImage(
                f"the cluster cannot use image {image}: {message or reason}",
                hint="check its name",
                image=image,
            )
        if reason in _UNSTARTED:
            return BackendUnavailable(
                f"sandbox {sandbox_id} could not be started: {message or reason}",
                hint=f"kubectl describe pod {pod_names.pod_name(sandbox_id)}",
            )
        ended = _state(container).get("terminated") or {}
        if container.get("name") == pod_names.NETWORK_CONTAINER and ended.get("exitCode"):
            return BackendUnavailable(
                f"the network of sandbox {sandbox_id} could not be made: {_said(ended)}",
                hint="networks by rule need nodes with nftables and connection tracking, and no "
                "RuntimeClass with a network of its own; backends.kubernetes.networks.full needs "
                "neither",
            )
        if container.get("name") in _OURS and ended.get("exitCode"):
            return BackendUnavailable(
                f"sandbox {sandbox_id} could not be started: "
                f"{_ended(str(container['name']), ended)}",
                hint="check backends.kubernetes.runner_image and "
                "backends.kubernetes.image_programs_dir",
            )
    why = end(pod)
    if why:
        return BackendUnavailable(
            f"sandbox {sandbox_id} ended right after its start: {why}",
            hint=f"kubectl describe pod {pod_names.pod_name(sandbox_id)}",
        )
    return None


def overdue(sandbox_id: SandboxId, pod: Mapping[str, Any], seconds: float) -> SandkastenError:
    """Return the error for a Pod that has not started in time."""
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return Busy(
            f"no node of the cluster can take sandbox {sandbox_id}: "
            f"{_said(scheduled) or scheduled.get('reason')}",
            hint="try again later, add nodes, or request less; see also "
            "backends.kubernetes.node_selector and backends.kubernetes.overcommit",
        )
    waiting = _waiting(pod)
    return BackendUnavailable(
        f"sandbox {sandbox_id} did not start within {seconds:g} s"
        + (f" ({waiting})" if waiting else ""),
        hint="raise backends.kubernetes.start_timeout_seconds if its image is large; see "
        f"kubectl describe pod {pod_names.pod_name(sandbox_id)}",
    )


def missing_claim(pod: Mapping[str, Any]) -> str:
    """Return what the scheduler reports about a claim that does not exist; empty if it does not."""
    message = _said(condition(pod, "PodScheduled") or {})
    return message if "persistentvolumeclaim" in message else ""


def words(pod: Mapping[str, Any]) -> str:
    """Return what the containers of a Pod reported at their end, if they failed."""
    ended = [_state(container).get("terminated") or {} for container in _containers(pod)]
    reasons = [_said(state) or str(state.get("reason")) for state in ended if state.get("exitCode")]
    return "; ".join(dict.fromkeys(reasons)) or _said(_status(pod)) or "no reason was given"


def overdue_task(what: str, pod: Mapping[str, Any], seconds: float) -> SandkastenError:
    """Return the error for one of our Pods that has not started in time."""
    scheduled = condition(pod, "PodScheduled") or {}
    message = _said(scheduled) if scheduled.get("status") == "False" else _waiting(pod)
    return Busy(
        f"{what} did not start within {seconds:g} s" + (f": {message}" if message else ""),
        hint="try again later, or raise backends.kubernetes.start_timeout_seconds",
    )


def condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    entry: Mapping[str, Any]
    for entry in _status(pod).get("conditions") or ():
        if entry.get("type") == kind:
            return entry
    return None


def _unpulled(image: str, message: str) -> SandkastenError:
    lower = message.lower()
    if any(words in lower for words in _UNKNOWN):
        return ImageNotFound(
            f"the cluster has no image {image}: {message}", hint="check its name", image=image
        )
    if any(words in lower for words in _DENIED):
        return Unauthorized(
            f"the cluster may not pull {image}: {message}",
            hint="set backends.kubernetes.pull_secrets to a Secret with the registry's "
            "credentials, or check the name",
        )
    return RegistryUnavailable(
        f"the cluster could not pull {image}: {message}",
        hint="check that its nodes reach the registry",
        image=image,
    )


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    status: Mapping[str, Any] = pod.get("status") or {}
    return status


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from _status(pod).get("initContainerStatuses") or ()
    yield from _status(pod).get("containerStatuses") or ()


def _state(container: Mapping[str, Any]) -> Mapping[str, Any]:
    state: Mapping[str, Any] = container.get("state") or {}
    return state


def _waiting(pod: Mapping[str, Any]) -> str:
    """Return what the containers wait for."""
    return "; ".join(
        f"{container.get('name')}: {waits.get('reason')} {_said(waits)}".strip()
        for container in _containers(pod)
        if (waits := _state(container).get("waiting"))
    )[:_SAID_CHARS]


def _ended(name: str, ended: Mapping[str, Any]) -> str:
    message = _said(ended)
    about = f" ({message})" if message else ""
    return f"its container {name} has ended, status {ended.get('exitCode')}{about}"


def _joined(why: str, source: Mapping[str, Any]) -> str:
    message = _said(source)
    return f"{why}: {message}" if message else why


def _said(source: Mapping[str, Any]) -> str:
    return one_line(str(source.get("message") or ""), _SAID_CHARS)
