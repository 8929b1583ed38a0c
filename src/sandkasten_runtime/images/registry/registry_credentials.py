"""Registry credentials by host, from settings, environment and docker's file.

Reads, never runs anything: docker's credential helpers are programs, and are not executed. A secret
is read when it is needed, is never part of a repr or of a message, and is returned only for the
host it was written for. Malformed files raise InvalidConfiguration.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.registry.image_reference import DOCKER_HUB

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_FILE: Final = 1024 * 1024
_MAX_SECRET: Final = 64 * 1024
# Docker's name for the hub in its file.
_HUB_KEYS: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


@dataclass(frozen=True, slots=True)
class Access:
    """Access settings of one registry. Nothing in it is required."""

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    token: str = field(default="", repr=False)
    """Sent unchanged, as a bearer token."""
    identity_token: str = field(default="", repr=False)
    """Exchanged for a bearer token at the address that the registry's challenge names."""
    ca_file: str = ""
    """Authorities trusted for this registry besides the machine's own."""
    insecure: bool = False
    """Allow plain HTTP. It does not disable any verification."""
    helper: str = ""
    """A credential helper that docker would have run, for the hint of a refusal."""

    @property
    def anonymous(self) -> bool:
        return not (self.username or self.token or self.identity_token)

    def basic(self) -> str | None:
        """Return the value of a Basic header; None without a user."""
        if not self.username:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class Keyring:
    """Every registry that is known by name. `environ` decides where docker's file is."""

    def __init__(
        self,
        settings: Mapping[str, Access] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._environ = os.environ if environ is None else environ

    def access(self, registry: str) -> Access:
        """Return the settings of a registry by its name (`docker.io`, `host:5000`)."""
        access = self._settings.get(registry, Access())
        if access.password_file:
            access = replace(access, password=_secret_file(access.password_file), password_file="")
        if not access.anonymous:
            return access
        other = self._elsewhere(registry)
        if other is None:
            return access
        return replace(other, ca_file=access.ca_file, insecure=access.insecure)

    def _elsewhere(self, registry: str) -> Access | None:
        inline = self._environ.get("DOCKER_AUTH_CONFIG")
        helper = ""
        if inline:
            access = _from_document(_document("DOCKER_AUTH_CONFIG", inline.encode()), registry)
            if access is not None and not access.anonymous:
                return access
            helper = access.helper if access else ""
        for path in self._files():
            try:
                with path.open("rb") as file:
                    data = file.read(_MAX_FILE + 1)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise InvalidConfiguration(
                    f"{path} cannot be read: {exc.strerror}", hint="check its owner and mode"
                ) from exc
            access = _from_document(_document(str(path), data), registry)
            if access is not None and not access.anonymous:
                return access
            helper = helper or (access.helper if access else "")
        return Access(helper=helper) if helper else None

    def _files(self) -> list[Path]:
        named = self._environ.get("REGISTRY_AUTH_FILE")
        if named:
            return [Path(named)]
        folder = self._environ.get("DOCKER_CONFIG")
        if folder:
            return [Path(folder) / "config.json"]
        home = self._environ.get("HOME")
        return [Path(home) / ".docker" / "config.json"] if home else []


def _secret_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_SECRET + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as exc:
        raise InvalidConfiguration(
            f"password_file {path} cannot be read: {exc.strerror}", hint="check its path and mode"
        ) from exc
    except UnicodeDecodeError as exc:
        raise InvalidConfiguration(
            f"password_file {path} is not UTF-8 text",
            hint="write the password as one line of UTF-8",
        ) from exc
    if len(data) > _MAX_SECRET or "\n" in text:
        raise InvalidConfiguration(
            f"password_file {path} is not one line", hint="write the password and nothing else"
        )
    return text


def _document(name: str, data: bytes) -> dict[str, object]:
    try:
        tree = json.loads(data) if len(data) <= _MAX_FILE else None
    except (ValueError, RecursionError) as exc:
        raise InvalidConfiguration(f"{name} is not JSON", hint="correct or remove it") from exc
    if not isinstance(tree, dict):
        raise InvalidConfiguration(f"{name} is not a JSON object", hint="correct or remove it")
    return tree


def _from_document(tree: dict[str, object], registry: str) -> Access | None:
    auths = tree.get("auths")
    for key, entry in auths.items() if isinstance(auths, dict) else ():
        if _names(str(key), registry) and isinstance(entry, dict) and entry:
            return _entry(str(key), entry)
    helpers = tree.get("credHelpers")
    for key, helper in helpers.items() if isinstance(helpers, dict) else ():
        if _names(str(key), registry):
            return Access(helper=str(helper)[:80])
    store = tree.get("credsStore")
    return Access(helper=str(store)[:80]) if isinstance(store, str) and store else None


def _names(key: str, registry: str) -> bool:
    """Return whether a key of docker's file means this registry, and not one path below it."""
    bare = key.removeprefix("https://").removeprefix("http://")
    host, _, path = bare.partition("/")
    if path.strip("/") not in ("", "v1", "v2"):
        return False
    if registry == DOCKER_HUB:
        return host.lower() in _HUB_KEYS
    return host.lower() == registry


def _entry(key: str, entry: dict[str, object]) -> Access:
    def text(name: str) -> str:
        value = entry.get(name, "")
        return value if isinstance(value, str) else ""

    username, password = text("username"), text("password")
    if packed := text("auth"):
        try:
            username, colon, password = (
                base64.b64decode(packed, validate=True).decode().partition(":")
            )
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise _odd(key) from exc
        if not colon:
            raise _odd(key)
        # Docker pads some of these with zeros.
        password = password.rstrip("\0")
    return Access(
        username=username,
        password=password,
        token=text("registrytoken"),
        identity_token=text("identitytoken"),
    )


def _odd(key: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"the credentials for {key[:80]} in docker's configuration are malformed",
        hint="log in to the registry again, or set images.registries",
    )
