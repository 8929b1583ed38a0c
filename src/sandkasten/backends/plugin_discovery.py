"""Find the backends that other distributions bring: their entry points of `sandkasten.backends`.

Reads the metadata of installed distributions itself: importing `importlib.metadata` takes 60 ms,
more than a short command takes, and this takes one or two. An installed distribution is trusted:
its code runs in this process. A plugin that cannot be used is reported as a problem and does not
stop the others.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.backend_plugins import INTERFACE, BackendPlugin
from sandkasten.settings.setting_fields import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

GROUP: Final = "sandkasten.backends"
_NAME: Final = re.compile("[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True)
class Discovered:
    plugins: tuple[BackendPlugin, ...] = ()
    problems: tuple[str, ...] = ()
    """One sentence for each plugin that cannot be used."""


def discover(taken: Collection[str], path: Sequence[str] | None = None) -> Discovered:
    """Return the plugins of the distributions on `path` (`sys.path`). `taken`: names of backends
    that no plugin may have.
    """
    plugins: dict[str, BackendPlugin] = {}
    problems: list[str] = []
    for entry, target in sorted(set(_entries(sys.path if path is None else path))):
        try:
            plugin = _loaded(target)
            if plugin.name in taken or plugin.name in plugins:
                raise _UnusableError(f"has the name {plugin.name}, which another backend has")
        except _UnusableError as exc:
            problems.append(f"backend plugin {entry} ({target}) {exc}")
        else:
            plugins[plugin.name] = plugin
    return Discovered(tuple(plugins.values()), tuple(problems))


class _UnusableError(Exception):
    """Why a plugin cannot be used, as the rest of a sentence about it."""


def _loaded(target: str) -> BackendPlugin:
    module, _, attribute = (part.strip() for part in target.partition(":"))
    if not attribute:
        raise _UnusableError(f"must name an object, as in {module}:PLUGIN")
    try:
        plugin = getattr(import_module(module), attribute)
    except Exception as exc:  # code of another project may raise anything
        raise _UnusableError(f"cannot be imported: {type(exc).__name__}: {exc}") from exc
    if not isinstance(plugin, BackendPlugin):
        raise _UnusableError("is not a BackendPlugin")
    if plugin.interface != INTERFACE:
        raise _UnusableError(
            f"requires plugin interface {plugin.interface}; this version provides {INTERFACE}"
        )
    if not _NAME.fullmatch(plugin.name):
        raise _UnusableError(
            f"has the name {plugin.name!r}, which is not a valid name: lower-case letters, digits "
            "and hyphens, at most 32"
        )
    _check_settings(plugin)
    return plugin


def _check_settings(plugin: BackendPlugin) -> None:
    """Raise _UnusableError for a section that cannot be read, or has settings of others."""
    if plugin.settings is None:
        return
    try:
        names = [one.name for one in settings_of(plugin.settings)]
    except TypeError as exc:
        raise _UnusableError("has settings that are not a dataclass") from exc
    for name in names:
        if not name.startswith(f"backends.{plugin.name}."):
            raise _UnusableError(
                f"has the setting {name}, which must begin with backends.{plugin.name}."
            )
    if not callable(getattr(plugin.settings, "completed", None)):
        raise _UnusableError("has settings without a method named completed")


def _entries(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    for directory in dict.fromkeys(path):
        try:
            with os.scandir(directory or ".") as entries:
                names = [one.name for one in entries if one.name.endswith(".dist-info")]
        except OSError:
            continue
        for name in names:
            yield from _declared(os.path.join(directory, name, "entry_points.txt"))


def _declared(file: str) -> list[tuple[str, str]]:
    """Return names and targets of our group in one file; most distributions have no such file."""
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError):
        return []
    if GROUP not in text:
        return []
    from configparser import ConfigParser, Error

    parser = ConfigParser(delimiters=("=",), interpolation=None)
    try:
        parser.read_string(text)
        return parser.items(GROUP) if parser.has_section(GROUP) else []
    except Error:
        return []
