"""What to do about a name that no installed component declares as a setting.

A section of a plugin of ours that is not installed is answered with the command that installs it,
and any other name with the nearest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.model import lazy_pattern
from sandkasten.model.optional_extras import SECTION_EXTRAS, install_command
from sandkasten.model.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PREFIXES: Final = ("SANDKASTEN_", "STATION_SANDBOX_")
# Read by the client and the command line.
_OTHER_VARIABLES: Final = frozenset({"SANDKASTEN_URL", "SANDKASTEN_TENANT", "SANDKASTEN_CONFIG"})
# Of the compose files, of a service with our name in Kubernetes, and of this repository's tests.
_OF_OTHERS: Final = lazy_pattern.compile(
    r"SANDKASTEN_((IMAGE|ALLOWED_HOSTS|SHARED_VOLUME|AGENTS|WORKFLOWS|LONG)$|(SERVICE|TEST|LIVE)_|PORT)"
)


def unknown_setting(message: str, name: str, known: Collection[str]) -> InvalidConfiguration:
    """Return the error for a name that is none of the `known` settings."""
    hint = did_you_mean(name, known)
    for section, extra in SECTION_EXTRAS.items():
        missing = not any(one.startswith(f"{section}.") for one in known)
        if missing and (name == section or name.startswith(f"{section}.")):
            message = f"{message}: the extra {extra}, which provides it, is not installed"
            hint = install_command(extra)
    return InvalidConfiguration(message, hint=hint, setting=name[:80])


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> tuple[str, ...]:
    """Return a sentence for each variable with one of our prefixes that nothing reads."""
    named = [
        name
        for name, value in sorted(environ.items())
        if value and name.startswith(_PREFIXES) and not _OF_OTHERS.match(name)
    ]
    if not named:
        return ()
    known = _OTHER_VARIABLES.union(known)
    return tuple(
        f"the environment variable {name[:80]} has no effect; {_remedy(name, known)}"
        for name in named
        if name not in known
    )


def _remedy(name: str, known: Collection[str]) -> str:
    for section, extra in SECTION_EXTRAS.items():
        prefix = f"SANDKASTEN_{section.removeprefix('backends.').upper()}_"
        if name.startswith(prefix) and not any(one.startswith(prefix) for one in known):
            return f"the extra {extra} is not installed; run: {install_command(extra)}"
    return _nearest(name, known)


def _nearest(name: str, known: Iterable[str]) -> str:
    """Compare without the prefixes, which would make any two names similar."""
    from difflib import get_close_matches

    plain = {one: _without_prefix(one) for one in sorted(known)}
    near = get_close_matches(_without_prefix(name)[:64], plain.values(), n=1, cutoff=0.6)
    alike = [one for one, short in plain.items() if short in near]
    prefix = next(one for one in _PREFIXES if name.startswith(one))
    best = next((one for one in alike if one.startswith(prefix)), alike[0] if alike else "")
    return f"did you mean {best}?" if best else "sandkasten config show lists the settings"


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
