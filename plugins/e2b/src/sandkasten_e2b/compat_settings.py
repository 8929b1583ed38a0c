"""Settings of the protocols of other sandbox services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.preview_links import checked_domain
from sandkasten.model.sandbox.cell_spec import Profile  # noqa: TC001  (read by dataclasses)
from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import Address, address, boolean, choice, domain
from sandkasten_server.api.previews.preview_rules import PreviewRules

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext


@dataclass(frozen=True, slots=True)
class CompatSettings:
    domain_text: str | None = setting(
        "compat.domain",
        domain,
        None,
        "The domain of E2B's SDKs: E2B_DOMAIN. The daemon serves api.{domain} and "
        "{port}-{id}.{domain}.",
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

    e2b_public_ports: bool = setting(
        "compat.e2b.public_ports",
        boolean,
        False,
        "Whether ports of sandboxes that E2B's SDKs create are public by default, as with E2B.",
    )

    e2b_profile: Profile = setting(
        "compat.e2b.profile",
        choice("hardened", "dev"),
        "hardened",
        "The profile of sandboxes that E2B's SDKs create: hardened, or dev (a writable root).",
    )

    @property
    def domain(self) -> str | None:
        return None if self.domain_text is None else checked_domain("", self.domain_text)[0]

    def listens(self, previews: PreviewRules) -> tuple[Address, ...]:
        """Return the addresses besides the daemon's own where E2B's protocol is served."""
        if not self.e2b_enabled:
            return ()
        addresses = (self.e2b_listen, previews.listen if self.domain_text is not None else None)
        return tuple(listen_address for listen_address in addresses if listen_address is not None)

    def told_domain(self, previews: PreviewRules) -> str | None:
        """Return the domain with the port of its names, for clients that use another address."""
        if self.domain_text is None:
            return None
        name, port = checked_domain("", self.domain_text)
        port = port or (previews.domain_port if previews.domain == name else None)
        return name if port in (None, 443) else f"{name}:{port}"

    def completed(self, context: SettingContext) -> CompatSettings:
        """Refuse a domain whose ports would have other names than those of previews."""
        previews = context.of(PreviewRules)
        if None not in (self.domain, previews.domain) and self.domain != previews.domain:
            raise InvalidConfiguration(
                f"compat.domain ({self.domain}) and previews.domain ({previews.domain}) differ",
                hint="set both to the same domain: get_host of the SDKs names previews",
                setting="compat.domain",
            )
        return self


PLUGIN: Final = SettingsPlugin("compat", ("compat",), (CompatSettings,))
