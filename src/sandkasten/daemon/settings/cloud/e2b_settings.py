"""Settings `backends.e2b.*`: the account at E2B, and how its sandboxes are made.

Contacts no server; a file with the key is read when the settings are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.e2b.e2b_options import KEY_VARIABLE, E2bOptions
from sandkasten.backends.cloud.machine_plan import CloudOptions
from sandkasten.daemon.settings.cloud import machine_settings
from sandkasten.daemon.settings.preview_settings import domain
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    invalid,
    model_key,
    path,
    seconds,
    secret_in,
    string,
    string_list,
)

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT: Final = E2bOptions()
_CLOUD: Final = CloudOptions()
_TEMPLATE: Final = lazy_pattern.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}\Z")


def template(name: str, value: object) -> str:
    found = string(name, value)
    if not _TEMPLATE.match(found):
        hint = "write the name or the id of a template, such as base"
        raise invalid(name, "a template of E2B", value, hint)
    return found


def template_list(name: str, value: object) -> tuple[str, ...]:
    """Accept a mapping, or strings `image=template`."""
    if isinstance(value, dict):
        value = [f"{key}={content}" for key, content in value.items()]
    found = string_list(name, value)
    for one in found:
        image, equals, wanted = one.rpartition("=")
        if not equals or not image or not _TEMPLATE.match(wanted):
            hint = "write image: template, such as python: my-python"
            raise invalid(name, "a template for each image", one, hint)
    return found


def service_url(name: str, value: object) -> str:
    return machine_settings.provider_url(name, value, "https://api.example.com")[0]


@dataclass(frozen=True, slots=True)
class E2bSettings:
    enabled: bool = machine_settings.enabled("e2b", "E2B")
    api_key: str | None = setting(
        "backends.e2b.api_key",
        model_key,
        None,
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
    domain: str | None = setting(
        "backends.e2b.domain",
        domain,
        None,
        "The domain of another service with E2B's protocol; localhost if both URLs are set.",
        aliases=("E2B_DOMAIN",),
    )
    api_url: str | None = setting(
        "backends.e2b.api_url",
        service_url,
        None,
        "The URL of the API; default: derived from the domain.",
        aliases=("E2B_API_URL",),
    )
    sandbox_url: str | None = setting(
        "backends.e2b.sandbox_url",
        service_url,
        None,
        "One URL at which all sandboxes are reached; default: a name in the domain for each.",
        aliases=("E2B_SANDBOX_URL",),
    )
    template: str = setting(
        "backends.e2b.template",
        template,
        _DEFAULT.template,
        "The template of requests without an image, or with an alias such as python.",
    )
    templates: tuple[str, ...] = setting(
        "backends.e2b.templates",
        template_list,
        (),
        "Templates for images of requests: image=template. Other images name a template.",
    )
    lifetime_s: float = setting(
        "backends.e2b.lifetime_seconds",
        seconds,
        _CLOUD.lifetime_s,
        "How long a sandbox may live; E2B then ends it, with or without a daemon.",
    )
    start_s: float = setting(
        "backends.e2b.start_timeout_seconds",
        seconds,
        _CLOUD.start_s,
        "How long a sandbox may take to start.",
    )
    timeout_s: float = setting(
        "backends.e2b.timeout_seconds",
        seconds,
        _DEFAULT.timeout_s,
        "How long one request to E2B may take.",
    )
    programs_dir: Path | None = setting(
        "backends.e2b.programs_dir",
        path,
        None,
        "Programs of Sandkasten for E2B's processors; default: those of this machine.",
    )

    def options(self) -> E2bOptions:
        key = self.api_key
        if key is None and self.api_key_file is not None:
            key = secret_in("backends.e2b.api_key_file", self.api_key_file, model_key)
        # A daemon of Sandkasten without `previews.domain` has its ports below localhost.
        has_urls = self.api_url is not None and self.sandbox_url is not None
        return E2bOptions(
            api_key=key or "",
            domain=self.domain or ("localhost" if has_urls else ""),
            api_url=self.api_url or "",
            sandbox_url=self.sandbox_url or "",
            template=self.template,
            templates=dict(_pair(one) for one in self.templates),
            timeout_s=self.timeout_s,
            cloud=CloudOptions(
                enabled=self.enabled,
                lifetime_s=self.lifetime_s,
                start_s=self.start_s,
                programs_dir=self.programs_dir,
            ),
        )


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.rpartition("=")
    return key, value
