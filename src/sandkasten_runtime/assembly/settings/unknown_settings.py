"""What to do about a name that no installed component declares as a setting.

A section of one of our plugins that is not installed is refused with the command that installs it,
and any other name with the nearest one. In a file, sections of a server that is not installed have
no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.model import lazy_pattern
from sandkasten.model.optional_extras import SECTION_EXTRAS, install_command
from sandkasten.model.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PREFIXES: Final = ("SANDKASTEN_", "STATION_SANDBOX_")
_SECTIONS: Final = {
    f"SANDKASTEN_{section.removeprefix('backends.').upper().replace('.', '_')}_": section
    for section in SECTION_EXTRAS
}
"""The sections of our plugins, by how the variables of each begin."""
_REFUSED: Final = ("SANDKASTEN_STORE_", "SANDKASTEN_TELEMETRY_ENDPOINT")
OTHER_VARIABLES: Final = frozenset({"SANDKASTEN_URL", "SANDKASTEN_TENANT", "SANDKASTEN_CONFIG"})
"""Variables that the client and the command line read."""
# Variables of the compose files, and of a service with our name in a cluster.
_OF_OTHERS: Final = lazy_pattern.compile(
    r"SANDKASTEN_((IMAGE|ALLOWED_HOSTS|SHARED_VOLUME|AGENTS|WORKFLOWS)$|SERVICE_|PORT)"
)


def is_of_absent_server(name: str, known_names: Collection[str]) -> bool:
    """Return whether only the server has the section of a name, and is not installed. An engine in
    a program then reads the settings file that a daemon elsewhere has.
    """
    section = _section(name)
    return SECTION_EXTRAS.get(section) == "server" and not any(
        _section(setting) == section for setting in known_names
    )


def unknown_setting(message: str, name: str, known_names: Collection[str]) -> InvalidConfiguration:
    """Return the error for a name that is not in `known_names`."""
    hint = _nearest_setting(name, known_names)
    section = _section(name)
    if section and not any(_section(setting) == section for setting in known_names):
        extra = SECTION_EXTRAS[section]
        message = f"{message}: the extra {extra}, which provides it, is not installed"
        hint = install_command(extra)
    return InvalidConfiguration(message, hint=hint, setting=name[:80])


def check_variables(environ: Mapping[str, str], known_names: Collection[str]) -> None:
    """Raise InvalidConfiguration for a variable that looks like a setting of `store`, or is the
    address of a collector, and is not a setting of what is installed. Without `store.url`, the
    daemon would keep its own records beside those of the database; spans would be lost.
    """
    known_names = frozenset(known_names)
    for name in sorted(environ):
        if environ[name] and name.startswith(_REFUSED) and name not in known_names:
            raise InvalidConfiguration(
                f"the environment variable {name[:80]} is not a setting",
                hint=_remedy(name, known_names),
                setting=name[:80],
            )


def unknown_variables(environ: Mapping[str, str], known_names: Collection[str]) -> tuple[str, ...]:
    """Return a sentence for each variable with one of our prefixes that nothing reads."""
    named = [
        name
        for name, value in sorted(environ.items())
        if value and name.startswith(_PREFIXES) and not _OF_OTHERS.match(name)
    ]
    if not named:
        return ()
    # The key of the client, and with the server a setting too.
    variables = OTHER_VARIABLES.union(known_names, {"SANDKASTEN_API_KEY"})
    return tuple(
        f"the environment variable {name[:80]} has no effect; {_remedy(name, variables)}"
        for name in named
        if name not in variables
    )


def _remedy(name: str, known_names: Collection[str]) -> str:
    section = _variable_section(name)
    if section and not any(_variable_section(variable) == section for variable in known_names):
        extra = SECTION_EXTRAS[section]
        return f"the extra {extra} is not installed; run: {install_command(extra)}"
    return _nearest(name, known_names)


def _section(name: str) -> str:
    """Return the longest section of our plugins that contains the name, or no section."""
    above = [section for section in SECTION_EXTRAS if f"{name}.".startswith(f"{section}.")]
    return max(above, key=len, default="")


def _variable_section(name: str) -> str:
    """Return the section of our plugins that a variable belongs to, or no section."""
    above = [prefix for prefix in _SECTIONS if f"{name}_".startswith(prefix)]
    return _SECTIONS[max(above, key=len)] if above else ""


def _nearest_setting(name: str, known_names: Collection[str]) -> str:
    """Return a hint: the nearest name, else all names of the section, else where all names are."""
    names = {*known_names, *SECTION_EXTRAS}
    sections = {
        setting[:end] for setting in names for end, letter in enumerate(setting) if letter == "."
    }
    section = name.rpartition(".")[0]
    if section not in sections:
        near = nearest(name, names | sections)
        return f"did you mean {near}?" if near else "sandkasten config show lists the settings"
    # Names of one section are alike because of their beginning.
    start = f"{section}."
    below = {
        setting.removeprefix(start).partition(".")[0]
        for setting in names
        if setting.startswith(start)
    }
    near = nearest(name.removeprefix(start), below)
    if near is not None:
        return f"did you mean {start}{near}?"
    return f"known: {', '.join(start + word for word in sorted(below))}"


def _nearest(name: str, known_names: Iterable[str]) -> str:
    """Compare without the prefixes, which would make any two names similar."""
    from difflib import get_close_matches

    plain = {variable: _without_prefix(variable) for variable in sorted(known_names)}
    near = get_close_matches(_without_prefix(name)[:64], plain.values(), n=1, cutoff=0.6)
    alike = [variable for variable, short in plain.items() if short in near]
    prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
    same_prefix = [variable for variable in alike if variable.startswith(prefix)]
    best = next(iter([*same_prefix, *alike]), "")
    return f"did you mean {best}?" if best else "sandkasten config show lists the settings"


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
