"""What the status of a Pod says about its sandbox. The statuses are those of a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    IsolationRefused,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    RegistryUnavailable,
    SandkastenError,
    Unauthorized,
)
from sandkasten.model.ids import SandboxId
from sandkasten_kubernetes import pod_status, refusals
from sandkasten_kubernetes.api.cluster_client import ApiRefused

ID = SandboxId("sbx_0123456789abcdef")
RANGE = 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi'
IMAGE = "example.org/python:3.11"
RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def pod(
    phase: str = "Running",
    sandbox: dict[str, Any] | None = None,
    gate: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    containers = [
        {"name": "gate", "state": RUNNING if gate is None else gate},
        {"name": "sandbox", "state": RUNNING if sandbox is None else sandbox},
    ]
    return {
        "metadata": {},
        "status": {"phase": phase, "podIP": "10.0.0.7", "containerStatuses": containers, **status},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def test_a_pod_runs_when_both_containers_do():
    assert pod_status.is_running(pod())
    assert pod_status.end(pod()) == ""
    assert pod_status.start_error(ID, IMAGE, pod()) is None
    assert pod_status.address(pod()) == "10.0.0.7"
    assert not pod_status.is_running(pod(gate=waiting("ContainerCreating")))
    assert not pod_status.is_running(pod("Pending", waiting("PodInitializing")))


@pytest.mark.parametrize("empty", [{}, {"status": {}}, {"status": None}, {"metadata": None}])
def test_a_pod_without_a_status_is_starting(empty):
    assert not pod_status.is_running(empty)
    assert pod_status.end(empty) == ""
    assert pod_status.start_error(ID, IMAGE, empty) is None
    assert pod_status.address(empty) == ""


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    ("reason", "message", "error"),
    [
        ("ErrImagePull", "rpc error: … example.org/python:3.11: not found", ImageNotFound),
        ("ImagePullBackOff", "manifest unknown", ImageNotFound),
        ("ErrImagePull", "pull access denied, repository … authorization failed", Unauthorized),
        ("ErrImagePull", "dial tcp: lookup example.org: no such host", RegistryUnavailable),
        ("ErrImageNeverPull", "", ImageNotFound),
        ("InvalidImageName", "couldn't parse image name", InvalidImage),
        ("CreateContainerError", "context deadline exceeded", BackendUnavailable),
        ("RunContainerError", "exec format error", BackendUnavailable),
    ],
)
def test_why_a_pod_does_not_start_is_named(reason, message, error):
    raised = pod_status.start_error(ID, IMAGE, pod("Pending", waiting(reason, message)))
    assert raised is not None
    assert type(raised) is error
    assert raised.hint
    assert message in raised.message


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "", "Unheard"])
def test_a_container_that_is_being_made_is_no_failure(reason):
    assert pod_status.start_error(ID, IMAGE, pod("Pending", waiting(reason))) is None


def test_an_image_with_the_runner_that_cannot_be_pulled_is_the_operators_matter():
    error = pod_status.start_error(
        ID, IMAGE, pod("Pending", gate=waiting("ErrImagePull", "not found"))
    )
    assert type(error) is BackendUnavailable
    assert "runner_image" in error.hint


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (pod(sandbox={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "memory"),
        (pod("Failed", reason="Evicted", message="The node was low on resource: memory."), "evict"),
        (pod("Failed", reason="DeadlineExceeded"), "end of its life"),
        (pod("Failed", reason="NodeShutdown"), "shut down"),
        (pod("Succeeded", sandbox={"terminated": {"exitCode": 0}}), "status 0"),
        (pod("Failed"), "has ended"),
        (pod(reason="NodeLost"), "node is lost"),
        ({**pod(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "being removed"),
    ],
)
def test_an_end_has_a_reason(ended, why):
    assert why in pod_status.end(ended)
    assert not pod_status.is_running(ended) or "node" in why


DONE: dict[str, Any] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
FULL = 'Usage of EmptyDir volume "workspace" exceeds the limit "16Mi".'
TAINTED = {
    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}  # fmt: skip


def test_a_status_without_a_reason_is_polled_again():
    assert pod_status.is_unexplained(pod(sandbox=DONE))
    assert not pod_status.is_unexplained(pod())
    assert not pod_status.is_unexplained(pod("Succeeded", DONE))
    assert not pod_status.is_unexplained(pod("Failed", DONE, reason="Evicted", message=FULL))
    oom = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert not pod_status.is_unexplained(pod(sandbox=oom))


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    ("ended", "status", "why"),
    [
        (pod("Failed", DONE, reason="Evicted", message=FULL), None, f"evicted it: {FULL}"),
        (pod("Failed", {"terminated": {"exitCode": 137}}), "crashed", "status 137"),
        (pod(sandbox={"terminated": {"reason": "OOMKilled"}}), "crashed", "memory"),
        (
            {**pod(conditions=[TAINTED]), "metadata": {"deletionTimestamp": "2026-01-01T00:00Z"}},
            None,
            "its node is lost",
        ),
    ],
)
def test_an_ended_pod_is_lost_or_has_crashed(ended, status, why):
    error = pod_status.gone(ID, ended)
    assert error is not None
    assert error.details.get("status") == status
    assert why in str(error.details["reason"])
    assert why in error.message
    assert pod_status.gone(ID, pod()) is None


def test_the_end_of_the_gate_alone_is_no_end():
    # The runner ends with it, and says so itself.
    assert pod_status.end(pod(gate={"terminated": {"exitCode": 0}})) == ""


def test_a_gate_that_cannot_run_is_named_and_not_the_runner_that_it_did_not_copy():
    message = 'exec: "/nowhere/sandkasten-gate": no such file or directory'
    ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": message}}
    without = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "no runner"}}
    error = pod_status.start_error(ID, IMAGE, pod("Failed", without, ended))
    assert isinstance(error, BackendUnavailable)
    assert "container gate" in error.message
    assert message in error.message
    assert "backends.kubernetes.image_programs_dir" in error.hint
    # One that has ended well has ended with its runner, which says more.
    error = pod_status.start_error(ID, IMAGE, pod("Failed", without, {"terminated": {}}))
    assert error is not None
    assert "container sandbox" in error.message


def test_no_room_in_the_cluster_is_busy():
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient memory.",
    }  # fmt: skip
    error = pod_status.overdue(ID, pod("Pending", {}, {}, conditions=[condition]), 120)
    assert type(error) is Busy
    assert "Insufficient memory" in error.message


def test_a_slow_start_says_what_it_waits_for():
    error = pod_status.overdue(ID, pod("Pending", waiting("ContainerCreating")), 120)
    assert type(error) is BackendUnavailable
    assert "ContainerCreating" in error.message


@pytest.mark.promise("P107")
def test_a_pod_whose_network_stays_open_is_refused():
    message = "sandkasten-gate: the network of this Pod stays open: it reaches 10.0.0.1:443"
    refused = pod(gate={"terminated": {"exitCode": 77, "message": message}})
    for error in (pod_status.stayed_open(ID, refused), pod_status.start_error(ID, IMAGE, refused)):
        assert type(error) is IsolationRefused
        assert "10.0.0.1:443" in error.message
        assert "NetworkPolicy" in error.hint
    # Only the gate can say so: the code of the sandbox may end with any status.
    ended = {"terminated": {"exitCode": 77}}
    assert pod_status.stayed_open(ID, pod(sandbox=ended)) is None
    assert pod_status.stayed_open(ID, pod(gate={"terminated": {"exitCode": 0}})) is None


def test_messages_of_a_cluster_are_bounded_and_printable():
    failed = pod("Failed", reason="Evicted", message="\x1b[2J" + "x" * 10_000)
    assert pod_status.end(failed).isprintable()
    assert len(pod_status.end(failed)) < 700


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (ApiRefused(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q'), QuotaExceeded),
        (ApiRefused(403, "Forbidden", 'violates PodSecurity "restricted"'), PolicyDenied),
        (ApiRefused(403, "Forbidden", RANGE, "boxes-acme"), PolicyDenied),
        (ApiRefused(403, "Forbidden", "User cannot create resource"), BackendUnavailable),
        (ApiRefused(409, "AlreadyExists", "exists"), Conflict),
        (ApiRefused(422, "Invalid", "spec.containers[1].image"), InvalidRequest),
        (ApiRefused(413, "RequestEntityTooLarge", "limit is 3145728"), PayloadTooLarge),
        (ApiRefused(404, "NotFound", 'namespaces "x" not found'), BackendUnavailable),
    ],
)
def test_a_refusal_of_the_cluster_is_named(refusal, error):
    raised: SandkastenError = refusals.unmade(ID, refusal)
    assert type(raised) is error
    assert refusal.message in raised.message
    assert raised.hint


@pytest.mark.promise("P111")
def test_a_node_that_cannot_make_a_network_by_rule_is_named():
    message = '{"error":{"errno":2,"message":"set the rules of the Pod","step":"network"}}'
    ended = {"terminated": {"exitCode": 1, "message": message}}
    failed = {"status": {"initContainerStatuses": [{"name": "network", "state": ended}]}}
    raised = pod_status.start_error(ID, IMAGE, failed)
    assert isinstance(raised, BackendUnavailable)
    assert "set the rules of the Pod" in raised.message
    assert "nftables" in raised.hint
    good = {"name": "network", "state": {"terminated": {"exitCode": 0}}}
    started = {"status": {"initContainerStatuses": [good]}}
    assert pod_status.start_error(ID, IMAGE, started) is None
