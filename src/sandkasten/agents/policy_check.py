"""Whether the operator allows what an agent's file asks for, decided before its run begins.

PolicyDenied names the setting that stands against it. Images are not judged here: their list
belongs to the source of images, which names it when it refuses one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import PolicyDenied
from sandkasten.model.sandbox.policy import check_network, parse_limits

if TYPE_CHECKING:
    from sandkasten.agents.definitions.sandbox_request import SandboxWish
    from sandkasten.model.sandbox.policy import Policy


def check_wish(wish: SandboxWish, policy: Policy) -> None:
    """Nothing, or PolicyDenied; UnsupportedByBackend for what is allowed and cannot be had."""
    if wish.network:
        if not policy.allow_network:
            raise _denied("sandbox.allow_network", "true", "policy.allow_network", "false")
        check_network("full")
    most = policy.limits.max_exec_timeout_s
    longest = "max_exec_timeout_seconds"
    for field, asked in (
        ("sandbox.timeout_seconds", wish.timeout_s),
        ("sandbox.limits.exec_timeout_seconds", wish.limits.get("exec_timeout_seconds")),
        (f"sandbox.limits.{longest}", wish.limits.get(longest)),
    ):
        if asked is not None and asked > most:
            rule = "defaults.max_exec_timeout_ms"
            raise _denied(field, f"{asked:g} s", rule, f"{most * 1000:.0f}")
    if wish.idle_timeout_s is not None and wish.idle_timeout_s > policy.lifetime_s:
        raise _denied(
            "sandbox.limits.idle_timeout_seconds",
            f"{wish.idle_timeout_s:g} s",
            "session_max_lifetime_seconds",
            f"{policy.lifetime_s:g}",
        )
    parse_limits(wish.limits, policy.limits, policy.ceiling)


def _denied(field: str, asked: str, rule: str, allowed: str) -> PolicyDenied:
    return PolicyDenied(
        f"{field} asks for {asked}, which {rule} ({allowed}) does not allow",
        hint="ask for less in the agent's file, or have the operator change that setting",
        rule=rule,
        field=field,
    )
