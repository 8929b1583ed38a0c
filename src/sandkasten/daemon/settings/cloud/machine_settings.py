"""Settings that all providers of machines share: the switch `enabled`, and the URL of its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.addresses import is_loopback
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, http_url

if TYPE_CHECKING:
    from urllib.parse import SplitResult


def enabled(provider: str, title: str) -> bool:
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
