"""Secrets of tenants, and the inspection that inserts them into requests of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.access.stored_secrets import (
    Secret,
    checked_secret,
    checked_secret_name,
    is_secret_name,
    no_such_secret,
)
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.sandbox.inspection import Inspection, check_hosts_allowed

if TYPE_CHECKING:
    from sandkasten.model.access.stored_secrets import SecretRequest
    from sandkasten.model.sandbox.network_policy import NetworkCeiling, NetworkPolicy
    from sandkasten.ports import Secrets

_List: TypeAlias = list[Secret]


class TenantSecrets:
    def __init__(self, port: Secrets | None, network: NetworkCeiling) -> None:
        self._secrets = port
        self._network = network

    @property
    def _port(self) -> Secrets:
        if self._secrets is None:
            raise UnsupportedByBackend("secrets are not stored here", hint="use a daemon")
        return self._secrets

    async def set(self, request: SecretRequest, *, tenant: str = DEFAULT_TENANT) -> Secret:
        """Store a secret, or replace the one with this name; its placeholder stays."""
        return await self._port.put(tenant, checked_secret(request))

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> _List:
        """Return the secrets of a tenant by name, without values."""
        return list(await self._port.list(tenant))

    async def remove(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a secret; NotFound if there is none. Running sandboxes keep it."""
        if not is_secret_name(name):
            raise no_such_secret(name)
        await self._port.remove(tenant, name)

    async def inspection(self, policy: NetworkPolicy, tenant: str) -> Inspection | None:
        """Return the inspection of a network with the values of its secrets; None without one."""
        if not policy.inspected:
            return None
        names = [checked_secret_name(name) for name in policy.secrets]
        network = self._network
        opened = await self._port.open(tenant, names) if names else ()
        check_hosts_allowed(policy, opened)
        return Inspection(policy.inspect, tuple(opened), network.uninspected, network.tls13)
