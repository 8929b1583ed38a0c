"""Settings `backends.fly.*`: the app whose machines are the sandboxes, and how they are made.

Contacts nothing; reads the file with the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.fly.fly_options import (
    CPU_KINDS,
    FLY_REACHES,
    TOKEN_VARIABLE,
    CpuKind,
    FlyOptions,
    Reach,
)
from sandkasten.backends.cloud.machine_plan import CloudOptions
from sandkasten.daemon.settings.cloud import machine_settings
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import choice, invalid, path, seconds, secret_in, string

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT: Final = FlyOptions()
_CLOUD: Final = CloudOptions()
_NAME: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_REGION: Final = lazy_pattern.compile(r"[a-z]{3}\Z")
_HOST: Final = lazy_pattern.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?\Z")
_MOST_TOKEN: Final = 16_384


def fly_app(name: str, value: object) -> str:
    found = string(name, value)
    if not _NAME.match(found):
        hint = "write 1 to 63 lower-case letters, digits and -"
        raise invalid(name, "the name of a Fly app", value, hint)
    return found


def fly_region(name: str, value: object) -> str:
    found = string(name, value)
    if not _REGION.match(found):
        raise invalid(name, "a region of Fly", value, "write three letters, such as ams")
    return found


def fly_host(name: str, value: object) -> str:
    found = string(name, value)
    if not _HOST.match(found):
        raise invalid(name, "a host name or an address", value, "write it without a port")
    return found


def fly_token(name: str, value: object) -> str:
    """Accept a token as `fly tokens create` prints it: with a space after FlyV1. No message repeats
    it.
    """
    found = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(found) <= _MOST_TOKEN or not found.isascii() or not found.isprintable():
        raise InvalidConfiguration(
            f"{name} must be printable ASCII characters",
            hint="use the token as fly tokens create deploy prints it",
            setting=name,
        )
    return found


def fly_url(name: str, value: object) -> str:
    url, parts = machine_settings.provider_url(name, value, _DEFAULT.api_url)
    if parts.username or parts.password or parts.query or parts.fragment or parts.path.strip("/"):
        hint = f"write the scheme and the host, such as {_DEFAULT.api_url}"
        raise invalid(name, "a URL without a path, a query and a user name", "this one", hint)
    return url


def image_directory(name: str, value: object) -> str:
    found = string(name, value).rstrip("/")
    if not found.startswith("/") or {"", ".", ".."} & {*found.split("/")[1:]}:
        hint = f"write a path such as {_DEFAULT.programs}"
        raise invalid(name, "an absolute path without . and ..", value, hint)
    return found


@dataclass(frozen=True, slots=True)
class FlySettings:
    enabled: bool = machine_settings.enabled("fly", "Fly")
    app: str | None = setting(
        "backends.fly.app",
        fly_app,
        None,
        "The Fly app whose machines are the sandboxes; give it a network of its own. Required.",
    )
    api_token: str | None = setting(
        "backends.fly.api_token",
        fly_token,
        None,
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
        _DEFAULT.api_url,
        "The URL of the Machines API.",
    )
    region: str | None = setting(
        "backends.fly.region", fly_region, None, "The region of the machines; default: Fly chooses."
    )
    cpu_kind: CpuKind = setting(
        "backends.fly.cpu_kind",
        choice(*CPU_KINDS),
        _DEFAULT.cpu_kind,
        "The processors of machines: shared or performance.",
    )
    image_programs_dir: str = setting(
        "backends.fly.image_programs_dir",
        image_directory,
        _DEFAULT.programs,
        "The directory of every image that has the programs of Sandkasten.",
    )
    reach: Reach = setting(
        "backends.fly.reach",
        choice(*FLY_REACHES),
        _DEFAULT.reach,
        "How machines are reached: service (a port of the app for each) or private (6PN).",
    )
    address: str | None = setting(
        "backends.fly.address",
        fly_host,
        None,
        "The host of the app's ports, such as APP.flycast; default: APP.fly.dev.",
    )
    lifetime_s: float = setting(
        "backends.fly.lifetime_seconds",
        seconds,
        _CLOUD.lifetime_s,
        "How long a machine may live; it then ends itself, with or without a daemon.",
    )
    start_s: float = setting(
        "backends.fly.start_timeout_seconds",
        seconds,
        _CLOUD.start_s,
        "How long a machine may take to start, pulling its image included.",
    )
    timeout_s: float = setting(
        "backends.fly.timeout_seconds",
        seconds,
        _DEFAULT.timeout_s,
        "How long one request to the Machines API may take.",
    )

    def options(self) -> FlyOptions:
        token = self.api_token
        if token is None and self.api_token_file is not None:
            token = secret_in("backends.fly.api_token_file", self.api_token_file, fly_token)
        return FlyOptions(
            app=self.app or "",
            api_url=self.api_url,
            api_token=token or "",
            programs=self.image_programs_dir,
            region=self.region or "",
            cpu_kind=self.cpu_kind,
            reach=self.reach,
            address=self.address or "",
            timeout_s=self.timeout_s,
            cloud=CloudOptions(
                enabled=self.enabled, lifetime_s=self.lifetime_s, start_s=self.start_s
            ),
        )
