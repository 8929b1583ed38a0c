"""Settings of the protocols of other sandbox services."""

from __future__ import annotations

from dataclasses import dataclass

from sandkasten.daemon.settings.setting_fields import setting
from sandkasten.daemon.settings.setting_parsers import Address, address, boolean, string
from sandkasten.model.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class CompatSettings:
    domain: str | None = setting(
        "compat.domain",
        string,
        None,
        "The domain that E2B's SDKs are told; their get_host builds host names with it.",
    )
    e2b_enabled: bool = setting(
        "compat.e2b.enabled",
        boolean,
        True,
        "Whether the daemon serves E2B's protocol below /e2b.",
    )
    e2b_listen: Address | None = setting(
        "compat.e2b.listen",
        address,
        None,
        "Another address, where E2B's protocol is served without the prefix /e2b.",
        show=str,
    )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.e2b_listen is None or is_loopback(self.e2b_listen.host)
