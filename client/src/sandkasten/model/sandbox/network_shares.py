"""The share of a sandbox in the network quota of its tenant. Pure.

Connections and bandwidth are limited by sums: the limits of all networks that a tenant has open
together may not exceed its quota. So each egress process enforces its own limit without knowing
the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import QuotaExceeded
from sandkasten.model.sandbox.network_limits import Allowance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.network_limits import NetworkLimits
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy


SHARED_LIMITS: Final = ("connections", "bandwidth_bps")
"""The limits of a network of which a sandbox may get a share of its tenant's quota."""


def shared_limits(
    policy: NetworkPolicy, tenant: str, quota: TenantQuota, others: Sequence[NetworkLimits]
) -> NetworkPolicy:
    """Return the policy with its share of the quota. `others` are the tenant's open networks.

    A limit that the request does not name becomes the default or, if that is less, an equal share
    for each of `max_sessions`, and never more than what is left. Raise QuotaExceeded.
    """
    sums = dict(
        zip(
            SHARED_LIMITS,
            (quota.max_network_connections, quota.max_network_bandwidth_bps),
            strict=True,
        )
    )
    named = dict(policy.requested_limits)
    for name, most in sums.items():
        if most is None:
            continue
        shares = [getattr(limits, name) for limits in others]
        used = most if None in shares else sum(shares)
        remaining = most - used
        if name not in named:
            share = (
                remaining if not quota.max_sessions else min(remaining, most // quota.max_sessions)
            )
            default = getattr(policy.limits, name)
            # A quota that is smaller than the number of sessions still lets some of them in.
            share = max(share, min(remaining, 1))
            named[name] = share if default is None else min(default, share)
        if not 0 < named[name] <= remaining:
            raise _exceeded(name, tenant, max(1, named[name]), used, most, unlimited=None in shares)
    return replace(policy, limits=replace(policy.limits, **named), requested_limits=named)


def daily_allowance(
    tenant: str, quota: TenantQuota, used: int, counted: NetworkCounts | None = None
) -> Allowance:
    """Return what a sandbox may still use on this day. Raise QuotaExceeded.

    `used` is the traffic of the whole tenant on this day, `counted` that of the sandbox so far.
    """
    most = quota.max_network_bytes_per_day
    if most is None:
        return Allowance()
    if used >= most:
        raise QuotaExceeded(
            f"the sandboxes of tenant {tenant} have used {used} of {most} network bytes of this "
            "day (UTC)",
            hint="use network: none, wait until the next day, or ask the operator for a larger "
            "quota",
            quota="network_bytes",
            limit=most,
            used=used,
        )
    return allowance(most - used, counted)


def allowance(remaining: int, counted: NetworkCounts | None) -> Allowance:
    """Return the byte counts at which a sandbox has used up `remaining`."""
    if counted is None:
        return Allowance(remaining, remaining)
    return Allowance(counted.bytes_in + remaining, counted.bytes_out + remaining)


def _exceeded(
    name: str, tenant: str, need: int, used: int, most: int, *, unlimited: bool
) -> QuotaExceeded:
    hint = f"request less (network.limits.{name}), or destroy a sandbox with a network"
    if unlimited:
        hint = (
            f"another sandbox of the tenant has no limit of {name}: update it with "
            f"--network-limit {name}=N, or destroy it"
        )
    return QuotaExceeded(
        f"the networks of tenant {tenant} have {used} of {most} {name} together, and {need} more "
        "were requested",
        hint=hint,
        quota=f"network_{name}",
        limit=most,
        used=used,
    )
