"""The operator's limits for agent files: a request over them fails before the run."""

from __future__ import annotations

import pytest

from sandkasten.errors import PolicyDenied
from sandkasten.model.sandbox.network_policy import NetworkCeiling
from sandkasten.model.sandbox.policy import Policy
from sandkasten_agents.definitions.sandbox_field import parse_sandbox
from sandkasten_tools.calls.policy_check import check_sandbox, network_of

POLICY = Policy(ceiling={"mem_limit_mb": 1024, "cpu_limit": 2, "max_files": 50}, lifetime_s=3600)


def asked(**fields):
    return parse_sandbox(fields)[0]


@pytest.mark.promise("P27")
@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"limits": {"memory_mb": 2048}}, "policy.max.mem_limit_mb"),
        ({"limits": {"mem_limit_mb": 1025}}, "policy.max.mem_limit_mb"),
        ({"limits": {"cpu_millicores": 2001}}, "policy.max.cpu_limit"),
        ({"limits": {"max_files": 51}}, "policy.max.max_files"),
        ({"limits": {"timeout_seconds": 3601}}, "session_max_lifetime_seconds"),
        ({"timeout_seconds": 3601}, "defaults.max_exec_timeout_ms"),
        ({"limits": {"exec_timeout_seconds": 3601}}, "defaults.max_exec_timeout_ms"),
        ({"limits": {"max_exec_timeout_seconds": 3601}}, "defaults.max_exec_timeout_ms"),
        ({"allow_network": True}, "policy.network"),
        ({"network": {"allow": ["example.org"]}}, "policy.network"),
        ({"gpus": 1}, "policy.gpus"),
        ({"limits": {"gpus": 1}}, "policy.gpus"),
    ],
)
def test_a_request_over_the_limit_is_denied_and_names_the_rule(fields, rule):
    with pytest.raises(PolicyDenied) as caught:
        check_sandbox(asked(**fields), POLICY, operator=True)
    assert caught.value.details["rule"] == rule
    assert rule in caught.value.message
    assert caught.value.hint


@pytest.mark.promise("P27")
@pytest.mark.parametrize(
    ("policy", "fields", "network"),
    [
        (Policy(network_default=True), {}, "none"),
        (Policy(network_default=True, allow_network=True), {}, None),
        (Policy(network_default=True, network=NetworkCeiling(allow=("a.org",))), {}, None),
        (Policy(network_default=True, allow_network=True), {"allow_network": False}, "none"),
        (Policy(network_default=True, allow_network=True), {"network": {"allow": []}}, "none"),
        (Policy(network_default=True, allow_network=True), {"allow_network": True}, "full"),
        (Policy(), {}, None),
    ],
)
def test_the_default_network_is_only_for_files_that_may_ask_for_one(policy, fields, network):
    assert network_of(asked(**fields), policy) == network


@pytest.mark.promise("P27")
def test_without_code_mode_only_stateless_sandboxes_are_allowed():
    policy = Policy(code_mode=False)
    with pytest.raises(PolicyDenied) as caught:
        check_sandbox(asked(mode="code"), policy, operator=True)
    assert caught.value.details == {"rule": "policy.code_mode", "field": "sandbox.mode"}
    check_sandbox(asked(mode="compute"), policy, operator=True)


@pytest.mark.promise("P27")
def test_without_sandboxes_no_agent_gets_one():
    for mode in ("code", "compute"):
        with pytest.raises(PolicyDenied) as caught:
            check_sandbox(asked(mode=mode), Policy(enabled=False), operator=True)
        assert caught.value.details == {"rule": "policy.enabled"}


def test_a_request_at_the_limit_is_allowed():
    check_sandbox(
        asked(
            timeout_seconds=3600,
            limits={
                "memory_mb": 1024,
                "cpu_millicores": 2000,
                "max_files": 50,
                "idle_timeout_seconds": 3600,
                "pids_limit": 4096,
            },
        ),
        POLICY,
        operator=True,
    )
    check_sandbox(asked(), Policy(), operator=True)


def test_a_run_of_a_key_needs_policy_network():
    with pytest.raises(PolicyDenied, match="policy.network allows none"):
        check_sandbox(asked(allow_network=True), Policy(allow_network=True), operator=False)
    policy = Policy(allow_network=True, network=NetworkCeiling(allow=("a.org",)))
    check_sandbox(asked(network={"allow": ["a.org"]}), policy, operator=False)
    check_sandbox(asked(allow_network=False), Policy(allow_network=True), operator=False)


def test_a_network_that_the_operator_allows_is_allowed():
    check_sandbox(asked(allow_network=True), Policy(allow_network=True), operator=True)
    rules = NetworkCeiling(allow=("*.example.org",))
    check_sandbox(asked(network={"allow": ["a.example.org"]}), Policy(network=rules), operator=True)
    with pytest.raises(PolicyDenied) as error:
        check_sandbox(
            asked(network={"allow": ["example.net"]}), Policy(network=rules), operator=True
        )
    assert error.value.details == {"rule": "policy.network", "field": "sandbox.network.allow"}


def test_every_refusal_is_reported_at_once():
    fields = {"limits": {"memory_mb": 2048, "max_files": 51}, "gpus": 1, "timeout_seconds": 3601}
    with pytest.raises(PolicyDenied) as caught:
        check_sandbox(asked(**fields), POLICY, operator=True)
    issues = caught.value.details["issues"]
    assert isinstance(issues, list)
    rules = (
        "defaults.max_exec_timeout_ms",
        "policy.gpus",
        "policy.max.mem",
        "policy.max.max_files",
    )
    assert [rule in issue for rule, issue in zip(rules, issues, strict=True)] == [True] * 4
    assert caught.value.message.startswith("4 requests of the sandbox are refused: ")
