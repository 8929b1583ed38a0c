"""Check of an agent's sandbox request against the operator's policy, before the run starts.

PolicyDenied names the setting that forbids the request. Images are not checked here: the image
source owns the list of allowed images and names the setting itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sandkasten.errors import PolicyDenied, SandkastenError
from sandkasten.model.sandbox.gpus import check_gpus, requested_gpus
from sandkasten.model.sandbox.limit_names import parse_limits
from sandkasten.model.sandbox.network_policy import network_for
from sandkasten.model.sandbox.policy import check_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.sandbox_options import SandboxOptions
    from sandkasten_tools.calls.agent_sandbox import AgentSandbox


def check_sandbox(sandbox: AgentSandbox, policy: Policy, *, operator: bool) -> None:
    """Raise PolicyDenied, or UnsupportedByBackend for a request that is allowed but not
    available; one error for all refusals. `operator` is false for a run that was started with a
    created key or a token.
    """
    check_enabled(policy)
    options = sandbox.options
    retain = ("sandbox.session.retain", sandbox.retain_s, policy)
    checks: list[Callable[[], object]] = [
        lambda: _check_mode(sandbox, policy),
        lambda: _check_network(sandbox.network_field, options.network, policy, operator=operator),
        lambda: _check_times(sandbox, policy),
        lambda: check_retention(*retain),
        lambda: _check_gpus(options, policy),
        *(
            partial(parse_limits, {name: value}, policy.limits, policy.ceiling)
            for name, value in options.limits.items()
            # _check_times names their setting.
            if "timeout" not in name
        ),
    ]
    refused: list[SandkastenError] = []
    for check in checks:
        try:
            check()
        except SandkastenError as exc:
            refused.append(exc)
    if len(refused) > 1:
        raise PolicyDenied(
            f"{len(refused)} requests of the sandbox are refused: {refused[0].message}; …",
            hint=refused[0].hint,
            **{
                **refused[0].details,
                "issues": [f"{refusal.message} ({refusal.hint})" for refusal in refused],
            },
        )
    if refused:
        raise refused[0]
    parse_limits(options.limits, policy.limits, policy.ceiling)


def _check_mode(sandbox: AgentSandbox, policy: Policy) -> None:
    if sandbox.mode == "code" and not policy.code_mode:
        raise PolicyDenied(
            "sandbox.mode requests code, but policy.code_mode is false",
            hint="use mode compute, or ask the operator to change the setting",
            rule="policy.code_mode",
            field="sandbox.mode",
        )


def _check_times(sandbox: AgentSandbox, policy: Policy) -> None:
    options = sandbox.options
    most = policy.limits.max_exec_timeout_s
    longest = "max_exec_timeout_seconds"
    for field, requested in (
        ("sandbox.timeout_seconds", sandbox.timeout_seconds),
        ("sandbox.limits.exec_timeout_seconds", options.limits.get("exec_timeout_seconds")),
        (f"sandbox.limits.{longest}", options.limits.get(longest)),
    ):
        if requested is not None and requested > most:
            rule = "defaults.max_exec_timeout_ms"
            raise _denied(field, f"{requested:g} s", rule, f"{most * 1000:.0f}")
    idle_s = options.idle_timeout_seconds
    if idle_s is not None and idle_s > policy.lifetime_s:
        raise _denied(
            "sandbox.limits.idle_timeout_seconds",
            f"{idle_s:g} s",
            "session_max_lifetime_seconds",
            f"{policy.lifetime_s:g}",
        )


def _check_gpus(options: SandboxOptions, policy: Policy) -> None:
    gpus = requested_gpus(options)
    if gpus is not None:
        check_gpus(gpus, policy.gpus, "sandbox.gpus")


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
    if network is None:
        return
    if policy.allow_network and operator:
        network_for(network, policy.network, operator=True)
        return
    try:
        network_for(network, policy.network, operator=False)
    except PolicyDenied as exc:
        requested = (
            ", ".join(network.get("allow", ())) if isinstance(network, dict) else str(network)
        )
        raise PolicyDenied(
            f"{field} requests {requested}, but {exc.message}",
            hint="ask the operator to set policy.network, or leave the field out",
            rule="policy.network",
            field=field,
        ) from exc


def _denied(field: str, requested: str, rule: str, allowed: str) -> PolicyDenied:
    return PolicyDenied(
        f"{field} requests {requested}, but {rule} allows {allowed}",
        hint="lower the value in the agent's file, or ask the operator to change the setting",
        rule=rule,
        field=field,
    )
