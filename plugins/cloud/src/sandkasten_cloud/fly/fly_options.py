"""Options of the backend fly: the app whose machines are the sandboxes, and how they are made.

Contacts nothing; reads the file with the token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    choice,
    inner_directory,
    invalid,
    path,
    seconds,
    secret_in,
    string,
)
from sandkasten_cloud.provider_options import MissingSetting, enabled_setting, provider_url

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

Reach = Literal["service", "private"]
CpuKind = Literal["shared", "performance"]

FLY_REACHES: Final = ("service", "private")
CPU_KINDS: Final = ("shared", "performance")
API_URL: Final = "https://api.machines.dev"
PROGRAMS: Final = "/opt/sandkasten/programs"
TOKEN_VARIABLE: Final = "FLY_API_TOKEN"  # noqa: S105  (the name of a variable)
_NAME: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_REGION: Final = lazy_pattern.compile(r"[a-z]{3}\Z")
_HOST: Final = lazy_pattern.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?\Z")
_MOST_TOKEN: Final = 16_384


def fly_app(name: str, value: object) -> str:
    text = string(name, value)
    if not _NAME.match(text):
        hint = "write 1 to 63 lower-case letters, digits and -"
        raise invalid(name, "the name of a Fly app", value, hint)
    return text


def fly_region(name: str, value: object) -> str:
    text = string(name, value)
    if not _REGION.match(text):
        raise invalid(name, "a region of Fly", value, "write three letters, such as ams")
    return text


def fly_host(name: str, value: object) -> str:
    text = string(name, value)
    if not _HOST.match(text):
        raise invalid(name, "a host name or an address", value, "write it without a port")
    return text


def fly_token(name: str, value: object) -> str:
    """Accept a token as `fly tokens create` prints it: with a space after FlyV1. No message repeats
    it.
    """
    token = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(token) <= _MOST_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidConfiguration(
            f"{name} must be printable ASCII characters",
            hint="use the token as fly tokens create deploy prints it",
            setting=name,
        )
    return token


def fly_url(name: str, value: object) -> str:
    url, parts = provider_url(name, value, API_URL)
    if parts.username or parts.password or parts.query or parts.fragment or parts.path.strip("/"):
        hint = f"write the scheme and the host, such as {API_URL}"
        raise invalid(name, "a URL without a path, a query and a user name", "this one", hint)
    return url


@dataclass(frozen=True, slots=True)
class FlyOptions:
    enabled: bool = enabled_setting("fly", "Fly")
    app: str = setting(
        "backends.fly.app",
        fly_app,
        "",
        "The Fly app whose machines are the sandboxes; give it a network of its own. Required.",
    )
    api_token: str = setting(
        "backends.fly.api_token",
        fly_token,
        "",
        "A deploy token of the app.",
        aliases=(TOKEN_VARIABLE,),
        show=masked,
    )
    api_token_file: Path | None = setting(
        "backends.fly.api_token_file", path, None, "A file with the token, instead of api_token."
    )
    api_url: str = setting(
        "backends.fly.api_url",
        fly_url,
        API_URL,
        "The URL of the Machines API.",
    )
    region: str = setting(
        "backends.fly.region", fly_region, "", "The region of the machines; default: Fly chooses."
    )
    cpu_kind: CpuKind = setting(
        "backends.fly.cpu_kind",
        choice(*CPU_KINDS),
        "shared",
        "The processors of machines: shared or performance.",
    )
    programs: str = setting(
        "backends.fly.image_programs_dir",
        inner_directory(PROGRAMS),
        PROGRAMS,
        "The directory of every image that has the programs of Sandkasten.",
    )
    reach: Reach = setting(
        "backends.fly.reach",
        choice(*FLY_REACHES),
        "service",
        "How machines are reached: service (a port of the app for each) or private (6PN).",
    )
    address: str = setting(
        "backends.fly.address",
        fly_host,
        "",
        "The host of the app's ports, such as APP.flycast; default: APP.fly.dev.",
    )
    lifetime_s: float = setting(
        "backends.fly.lifetime_seconds",
        seconds,
        3600.0,
        "How long a machine may live; it then ends itself, with or without a daemon.",
    )
    start_s: float = setting(
        "backends.fly.start_timeout_seconds",
        seconds,
        120.0,
        "How long a machine may take to start, pulling its image included.",
    )
    timeout_s: float = setting(
        "backends.fly.timeout_seconds",
        seconds,
        30.0,
        "How long one request to the Machines API may take.",
    )
    # The image has them.
    programs_dir: ClassVar[Path | None] = None

    def missing(self) -> MissingSetting | None:
        if not self.app:
            return MissingSetting(
                "backends.fly.app is not set",
                "run fly apps create NAME --network NAME, and set backends.fly.app to NAME",
            )
        if not self.api_token:
            return MissingSetting(
                "backends.fly.api_token is not set",
                f"set {TOKEN_VARIABLE} to the output of: fly tokens create deploy -a {self.app}",
            )
        return None

    @property
    def host(self) -> str:
        return self.address or f"{self.app}.fly.dev"

    def completed(self, context: SettingContext) -> FlyOptions:
        """Return the options with the token of `api_token_file`."""
        if self.api_token or self.api_token_file is None:
            return self
        token = secret_in("backends.fly.api_token_file", self.api_token_file, fly_token)
        return replace(self, api_token=token)
