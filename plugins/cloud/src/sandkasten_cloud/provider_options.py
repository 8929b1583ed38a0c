"""Options that all providers of machines have: when a provider may be used, and its API's URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, http_url

if TYPE_CHECKING:
    from pathlib import Path
    from urllib.parse import SplitResult


@dataclass(frozen=True, slots=True)
class MissingSetting:
    """Why no request can be sent to a provider, and what the operator sets."""

    reason: str
    remedy: str


class ProviderOptions(Protocol):
    """The options of one provider."""

    @property
    def enabled(self) -> bool:
        """Whether new sandboxes may be made there."""
        ...

    @property
    def lifetime_s(self) -> float:
        """The provider ends a machine after this time."""
        ...

    @property
    def start_s(self) -> float:
        """How long a machine may take to start."""
        ...

    @property
    def region(self) -> str:
        """Empty: as the provider chooses."""
        ...

    @property
    def programs_dir(self) -> Path | None:
        """The directory of our programs for its processors; None: those of this machine."""
        ...

    def missing(self) -> MissingSetting | None:
        """Return a setting without which no request can be sent; None if there is none."""
        ...


def enabled_setting(provider: str, title: str) -> bool:
    """Declare the switch of a provider. It is off until the operator turns it on: each key that may
    create a sandbox can otherwise make machines that the operator pays for.
    """
    return setting(
        f"backends.{provider}.enabled",
        boolean,
        False,
        f"Whether requests may use {title}, whose machines you pay for.",
    )


def provider_url(name: str, value: object, example: str) -> tuple[str, SplitResult]:
    """Return the URL of a provider, without a slash at its end, and its parts."""
    url, parts = http_url(name, value, "an https URL", example)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise InvalidConfiguration(
            f"{name} must be an https URL: over plain http, other machines could read the "
            "credentials",
            hint=f"write {example}; http is allowed only to an address of this machine",
            setting=name,
        )
    return url.rstrip("/"), parts
