"""Check of an agent's sandbox request against the operator's policy, before the run starts.

PolicyDenied names the setting that forbids the request. Images are not checked here: the image
source owns the list of allowed images and names the setting itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.errors import PolicyDenied
from sandkasten.model.sandbox.gpus import check_gpus, requested_gpus
from sandkasten.model.sandbox.network_policy import network_for
from sandkasten.model.sandbox.policy import check_enabled, parse_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.agents.definitions.agent_sandbox import AgentSandbox
    from sandkasten.model.sandbox.policy import Policy


def check_sandbox(sandbox: AgentSandbox, policy: Policy, *, operator: bool) -> None:
    """Raise PolicyDenied, or UnsupportedByBackend for a request that is allowed but not
    available. `operator` is false for a run that was started with a created key or a token.
    """
    check_enabled(policy)
    if sandbox.mode == "code" and not policy.code_mode:
        raise PolicyDenied(
            "sandbox.mode requests code, but policy.code_mode is false",
            hint="use mode compute, or ask the operator to change the setting",
            rule="policy.code_mode",
            field="sandbox.mode",
        )
    options = sandbox.options
    if options.network is not None:
        _check_network(sandbox.network_field, options.network, policy, operator=operator)
    most = policy.limits.max_exec_timeout_s
    longest = "max_exec_timeout_seconds"
    for field, asked in (
        ("sandbox.timeout_seconds", sandbox.timeout_seconds),
        ("sandbox.limits.exec_timeout_seconds", options.limits.get("exec_timeout_seconds")),
        (f"sandbox.limits.{longest}", options.limits.get(longest)),
    ):
        if asked is not None and asked > most:
            rule = "defaults.max_exec_timeout_ms"
            raise _denied(field, f"{asked:g} s", rule, f"{most * 1000:.0f}")
    idle_s = options.idle_timeout_seconds
    if idle_s is not None and idle_s > policy.lifetime_s:
        raise _denied(
            "sandbox.limits.idle_timeout_seconds",
            f"{idle_s:g} s",
            "session_max_lifetime_seconds",
            f"{policy.lifetime_s:g}",
        )
    check_retention("sandbox.session.retain", sandbox.retain_s, policy)
    gpus = requested_gpus(options)
    if gpus is not None:
        check_gpus(gpus, policy.gpus, "sandbox.gpus")
    parse_limits(options.limits, policy.limits, policy.ceiling)


def network_of(sandbox: AgentSandbox, policy: Policy) -> str | Mapping[str, Any] | None:
    """Return the network to request for an agent; None is the default network.

    A file that may not ask for a network does not get one by default either.
    """
    network = sandbox.options.network
    permitted = policy.allow_network or policy.network.allow is not None
    if network is None and policy.network_default and not permitted:
        return "none"
    return network


def check_retention(field: str, retain_s: float, policy: Policy) -> None:
    """Raise PolicyDenied if a session is to be kept longer than the operator allows."""
    if retain_s > policy.max_retain_s:
        most = f"{policy.max_retain_s:g}"
        raise _denied(field, f"{retain_s:g} s", "session_max_retain_seconds", most)


def _check_network(field: str, network: object, policy: Policy, *, operator: bool) -> None:
    """Without policy.network a file gets no network, except in the operator's own runs under
    policy.allow_network.
    """
    if policy.allow_network and operator:
        network_for(network, policy.network, operator=True)
        return
    try:
        network_for(network, policy.network, operator=False)
    except PolicyDenied as exc:
        asked = ", ".join(network.get("allow", ())) if isinstance(network, dict) else str(network)
        raise PolicyDenied(
            f"{field} requests {asked}, but {exc.message}",
            hint="ask the operator to set policy.network, or leave the field out",
            rule="policy.network",
            field=field,
        ) from exc


def _denied(field: str, asked: str, rule: str, allowed: str) -> PolicyDenied:
    return PolicyDenied(
        f"{field} requests {asked}, but {rule} allows {allowed}",
        hint="lower the value in the agent's file, or ask the operator to change the setting",
        rule=rule,
        field=field,
    )
