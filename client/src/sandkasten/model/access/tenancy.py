"""Tenants, scopes and quotas, and how the names of tenants are kept apart. Pure.

Everything that belongs to a tenant carries its name; another tenant's answers like something
unknown. The operator's own tenant is `default`: embedded use, loopback without a key, the daemon's
Unix socket and the configured `api_key` all belong to it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, Literal, get_args

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import TENANT, form
from sandkasten.model.spelling import shown

Scope = Literal["sessions", "files", "workspaces", "images", "secrets", "metrics", "admin"]
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))
DEFAULT_TENANT: Final = "default"
_TENANT = form(TENANT)
# In no tenant's name, so what follows the last one is always the tenant.
_AT: Final = "@"


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What one tenant may use at a time; None means unlimited."""

    max_sessions: int | None = None
    max_memory_bytes: int | None = None
    """Sum of the memory limits of its sandboxes."""
    max_disk_bytes: int | None = None
    """Sum of the sizes of its sandboxes' and named workspaces, snapshots, and stored files."""
    requests_per_second: float | None = None
    max_network_connections: int | None = None
    """Sum of the connection limits of its sandboxes with a network."""
    max_network_bandwidth_bps: int | None = None
    """Sum of the bandwidth limits of its sandboxes with a network."""
    max_network_bytes_per_day: int | None = None
    """Bytes that its sandboxes send and receive on one day (UTC)."""

    @property
    def limits_network(self) -> bool:
        return (
            self.max_network_connections is not None
            or self.max_network_bandwidth_bps is not None
            or self.max_network_bytes_per_day is not None
        )


@dataclass(frozen=True, slots=True)
class TenantTally:
    """What the sandboxes of a tenant take together."""

    sessions: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    """The size of workspaces without a name."""


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What a tenant has of each quota."""

    sessions: int
    memory_bytes: int
    disk_bytes: int
    network_connections: int
    network_bandwidth_bps: int | None
    """None: one of its open networks has no limit."""
    network_bytes_today: int


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a tenant uses, and the quota of the key that asks."""

    tenant: str
    quota: TenantQuota
    used: TenantUsage


@dataclass(frozen=True, slots=True)
class Principal:
    """The origin of a request. `admin` has every scope and may act as another tenant."""

    tenant: str = DEFAULT_TENANT
    scopes: frozenset[Scope] = SCOPES
    key_id: str | None = None
    """None: by the Unix socket, or loopback without a key."""
    quota: TenantQuota = field(default_factory=TenantQuota)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


def checked_tenant(text: str) -> str:
    if not isinstance(text, str) or not _TENANT.match(text):
        raise InvalidRequest(
            f"{shown(str(text))} is not a valid tenant name",
            hint="1 to 32 of a-z, 0-9 and '-', beginning with a letter or a digit",
            field="tenant",
        )
    return text


def scoped(tenant: str, name: str) -> str:
    """Return a tenant's name as it is stored; the default tenant's stay plain if possible."""
    if tenant == DEFAULT_TENANT and _AT not in name:
        return name
    return f"{name}{_AT}{tenant}"


def unscoped(stored_name: str) -> tuple[str, str]:
    """Return the tenant, and the name as its owner knows it."""
    name, at, tenant = stored_name.rpartition(_AT)
    return (tenant, name) if at else (DEFAULT_TENANT, stored_name)
