"""Load the plugins of a group, and report why some of them cannot be used.

An installed distribution is trusted: its code runs in this process. These checks keep a plugin from
taking the place of another part by accident or by its name. A plugin that cannot be used is a
problem, one sentence, and stops no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.plugins.entry_points import entry_points
from sandkasten.plugins.plugin_failure import summary
from sandkasten.ports.plugin_interface import INTERFACE, invalid_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sandkasten.plugins.entry_points import EntryPoint


class Plugin(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def interface(self) -> int: ...


P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class Installed(Generic[P]):
    plugins: tuple[P, ...]
    """By their names."""
    origins: Mapping[str, EntryPoint]
    """Where each plugin comes from, by its name."""
    problems: tuple[str, ...]
    """One sentence for each plugin that cannot be used."""


def installed(
    group: str,
    kind: type[P],
    unusable: Callable[[P], str | None] = lambda plugin: None,
    path: Sequence[str] | None = None,
) -> Installed[P]:
    """Return the plugins of a group on `path` (`sys.path`). `unusable` returns why a plugin of the
    kind with a valid name cannot be used, as the rest of a sentence about it, or None.
    """
    by_name: dict[str, list[tuple[EntryPoint, P]]] = {}
    problems: list[str] = []
    for entry in entry_points(path).of(group):
        try:
            plugin = _loaded(entry.target, kind)
            reason = invalid_name(plugin.name) or unusable(plugin)
            if reason is not None:
                raise _UnusableError(reason)
        except _UnusableError as exc:
            problems.append(f"{group}: {entry} {exc}")
        else:
            by_name.setdefault(plugin.name, []).append((entry, plugin))
    for name, same in by_name.items():
        if len(same) > 1:
            entries = " and ".join(str(entry) for entry, _ in same)
            problems.append(f"{group}: {entries} have the same name, {name}; none of them is used")
    usable = [same[0] for _, same in sorted(by_name.items()) if len(same) == 1]
    return Installed(
        tuple(plugin for _, plugin in usable),
        {plugin.name: entry for entry, plugin in usable},
        tuple(problems),
    )


def only(plugins: Sequence[P], part: str, setting: str | None = None) -> P:
    """Return the plugin of a part. Raise InvalidConfiguration if there are several: none of them
    may take the place of another.
    """
    if len(plugins) > 1:
        names = " and ".join(plugin.name for plugin in plugins)
        raise InvalidConfiguration(
            f"the plugins {names} both provide {part}, and only one may",
            hint="uninstall all but one of them",
            **({} if setting is None else {"setting": setting}),
        )
    return plugins[0]


def problem_of(name: str, problems: Iterable[str]) -> str | None:
    """Return the first problem of the plugin with this name; None if it has none."""
    return next((problem for problem in problems if f"plugin {name} (" in problem), None)


class _UnusableError(Exception):
    """Why a plugin cannot be used, as the rest of a sentence about it."""


def _loaded(target: str, kind: type[P]) -> P:
    module, _, attribute = (part.strip() for part in target.partition(":"))
    if not attribute:
        raise _UnusableError(f"must name an object, as in {module}:PLUGIN")
    try:
        plugin = getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        # Code of another project may raise anything, and no task runs here.
        raise _UnusableError(f"cannot be imported: {summary(exc)}") from exc
    if not isinstance(plugin, kind):
        raise _UnusableError(f"is not a {kind.__name__}")
    if not isinstance(plugin.name, str):
        raise _UnusableError(f"has the name {plugin.name!r}, which is not a string")
    if plugin.interface != INTERFACE:
        raise _UnusableError(
            f"requires plugin interface {plugin.interface}; this version provides {INTERFACE}"
        )
    return plugin
