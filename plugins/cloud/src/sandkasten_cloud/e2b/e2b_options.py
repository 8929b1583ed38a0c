"""Options of the backend e2b: the account at E2B, and how its sandboxes are made.

Contacts no server; a file with the key is read when the settings are.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    domain,
    invalid,
    pair_list,
    path,
    seconds,
    secret_in,
    service_key,
    show_pairs,
    string,
)
from sandkasten_cloud.provider_options import MissingSetting, enabled_setting, provider_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

KEY_VARIABLE: Final = "E2B_API_KEY"
_TEMPLATE: Final = lazy_pattern.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}\Z")


def template(name: str, value: object) -> str:
    text = string(name, value)
    if not _TEMPLATE.match(text):
        hint = "write the name or the id of a template, such as base"
        raise invalid(name, "a template of E2B", value, hint)
    return text


def template_map(name: str, value: object) -> dict[str, str]:
    """Accept a mapping, or strings `image=template`."""
    templates = {}
    for pair in pair_list(name, value):
        image, equals, wanted = pair.rpartition("=")
        if not equals or not image or not _TEMPLATE.match(wanted):
            hint = "write image: template, such as python: my-python"
            raise invalid(name, "a template for each image", pair, hint)
        templates[image] = wanted
    return templates


def service_url(name: str, value: object) -> str:
    return provider_url(name, value, "https://api.example.com")[0]


@dataclass(frozen=True, slots=True)
class E2bOptions:
    enabled: bool = enabled_setting("e2b", "E2B")
    api_key: str = setting(
        "backends.e2b.api_key",
        service_key,
        "",
        "The API key of an account at E2B; prefer api_key_file or the variable.",
        aliases=(KEY_VARIABLE,),
        show=masked,
    )
    api_key_file: Path | None = setting(
        "backends.e2b.api_key_file",
        path,
        None,
        "A file that holds the key, readable only by the daemon's user.",
    )
    domain: str = setting(
        "backends.e2b.domain",
        domain,
        "",
        "The domain of another service with E2B's protocol; localhost if both URLs are set.",
        aliases=("E2B_DOMAIN",),
    )
    api_url: str = setting(
        "backends.e2b.api_url",
        service_url,
        "",
        "The URL of the API; default: derived from the domain.",
        aliases=("E2B_API_URL",),
    )
    sandbox_url: str = setting(
        "backends.e2b.sandbox_url",
        service_url,
        "",
        "One URL at which all sandboxes are reached; default: a name in the domain for each.",
        aliases=("E2B_SANDBOX_URL",),
    )
    template: str = setting(
        "backends.e2b.template",
        template,
        "base",
        "The template of requests without an image, or with an alias such as python.",
    )
    templates: Mapping[str, str] = setting(
        "backends.e2b.templates",
        template_map,
        MappingProxyType({}),
        "Templates for images of requests: image=template. Other images name a template.",
        show=show_pairs,
    )
    lifetime_s: float = setting(
        "backends.e2b.lifetime_seconds",
        seconds,
        3600.0,
        "How long a sandbox may live; E2B then ends it, with or without a daemon.",
    )
    start_s: float = setting(
        "backends.e2b.start_timeout_seconds",
        seconds,
        120.0,
        "How long a sandbox may take to start.",
    )
    timeout_s: float = setting(
        "backends.e2b.timeout_seconds",
        seconds,
        30.0,
        "How long one request to E2B may take.",
    )
    programs_dir: Path | None = setting(
        "backends.e2b.programs_dir",
        path,
        None,
        "Programs of Sandkasten for E2B's processors; default: those of this machine.",
    )
    region: ClassVar[str] = ""

    def missing(self) -> MissingSetting | None:
        if self.api_key:
            return None
        return MissingSetting(
            "backends.e2b.api_key is not set",
            f"set {KEY_VARIABLE}, or backends.e2b.api_key_file to a file with the key",
        )

    def completed(self, context: SettingContext) -> E2bOptions:
        """Return the options with the key of `api_key_file`."""
        key = self.api_key
        if not key and self.api_key_file is not None:
            key = secret_in("backends.e2b.api_key_file", self.api_key_file, service_key)
        # A daemon of Sandkasten without `previews.domain` has its ports below localhost.
        has_urls = self.api_url and self.sandbox_url
        domain = self.domain or ("localhost" if has_urls else "")
        return replace(self, api_key=key, domain=domain)
