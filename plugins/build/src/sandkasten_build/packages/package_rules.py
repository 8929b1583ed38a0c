"""The operator's rules for packages: whether, which, from where, time and size limits."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    http_url,
    positive_integer,
    seconds,
    string,
    string_list,
)

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext

# Longer than a large wheel takes on a slow line.
_MAX_INSTALL_S: Final = 86_400.0


def package_url(name: str, value: object) -> str:
    url, _ = http_url(name, value, "the http(s) URL of a package index", "https://host/path")
    return url


def wheel_directory(name: str, value: object) -> str:
    directory = string(name, value)
    # pip splits its list of directories at spaces.
    if not directory.startswith("/") or any(letter.isspace() for letter in directory):
        raise InvalidConfiguration(
            f"{name} must be the absolute path of a directory, without spaces",
            hint="write /srv/wheels",
            setting=name,
        )
    return directory


def address(url: str) -> str:
    """Return the address without credentials."""
    split = urlsplit(url)
    return split._replace(netloc=_bare(split)).geturl()


def _bare(split: SplitResult) -> str:
    return split.netloc.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class PackageRules:
    enabled: bool = setting(
        "packages.enabled",
        boolean,
        True,
        "Whether pip_packages and npm_packages of a request are installed.",
    )
    index_url: str | None = setting(
        "packages.index_url",
        package_url,
        None,
        "The index of Python packages; default: as pip is configured on this machine.",
        show=address,
    )
    find_links: str | None = setting(
        "packages.find_links",
        wheel_directory,
        None,
        "A directory of wheels; without index_url the only source, offline.",
    )
    npm_registry: str | None = setting(
        "packages.npm_registry",
        package_url,
        None,
        "The registry of npm packages; default: as npm is configured on this machine.",
        show=address,
    )
    allow: tuple[str, ...] | None = setting(
        "packages.allow",
        string_list,
        None,
        "The only packages that requests may name: name, pip:name or npm:name.",
    )
    build: bool = setting(
        "packages.build",
        boolean,
        True,
        "Whether source distributions are built and npm install scripts run, in a sandbox.",
    )
    timeout_s: float = setting(
        "packages.timeout_seconds",
        seconds,
        600.0,
        "How long the packages of one request may take to install.",
    )
    max_bytes: int = setting(
        "packages.max_bytes",
        positive_integer,
        10 << 30,
        "Disk space of installed packages; the least recently used are removed first.",
    )

    def completed(self, context: SettingContext) -> PackageRules:
        if not 1 <= self.timeout_s <= _MAX_INSTALL_S:
            raise InvalidConfiguration(
                f"packages.timeout_seconds must be 1 to {_MAX_INSTALL_S:g}, got {self.timeout_s:g}",
                hint="write seconds or 10m",
                setting="packages.timeout_seconds",
            )
        return self

    @property
    def pip_source(self) -> list[str]:
        """Return what decides which files pip finds. A folder counts with its content.

        Without builds it is another source, so that a set that was built earlier is not used.
        """
        sources = [] if self.index_url is None else [f"index {address(self.index_url)}"]
        if self.find_links is not None:
            sources.append(f"folder {self.find_links} {_listing(self.find_links)}")
        sources = sources or ["as pip is configured"]
        return sources if self.build else [*sources, "wheels only"]


PLUGIN: Final = SettingsPlugin("packages", ("packages",), (PackageRules,))


def _listing(directory: str) -> str:
    try:
        entries = sorted(
            (entry.name, status.st_size, status.st_mtime_ns)
            for entry in os.scandir(directory)
            for status in (entry.stat(),)
        )
    except OSError as exc:
        return f"({exc.strerror})"
    return hashlib.sha256(repr(entries).encode()).hexdigest()
