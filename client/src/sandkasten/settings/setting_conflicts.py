"""Find settings that two parts declare: by name, environment variable, alias or key.

Two parts that read one value would share what belongs to one of them: with a setting `api.key`,
a plugin would read `SANDKASTEN_API_KEY`, the key of the daemon. A conflict is a sentence about a
part; nothing is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.settings.setting_fields import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandkasten.settings.setting_fields import Section

_CORE: Final = "Sandkasten itself"


def conflicts(
    core: Iterable[type[Section]],
    parts: Mapping[str, Sequence[type[Section]]],
    reserved: Iterable[str] = (),
) -> dict[str, str]:
    """Return the first conflict of each part that has one, as the rest of a sentence about it.

    `parts`: their sections by a text that names them. `reserved`: variables that the core reads
    besides its settings. What the core declares stays its own; of two other parts, both have a
    conflict.
    """
    claims = _Claims(reserved)
    for section in core:
        claims.add(_CORE, section)
    for part, sections in parts.items():
        for section in sections:
            claims.add(part, section)
    return claims.conflicts()


class _Claims:
    """Which part declares each name, section and variable. Every short command makes one."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._sections: dict[str, set[str]] = {}
        self._variables = dict.fromkeys(reserved, _CORE)
        self._shared: set[tuple[str, str]] = set()
        self._clashes: list[tuple[str, str, str, str]] = []

    def add(self, part: str, section: type[Section]) -> None:
        for setting in settings_of(section):
            for name in (setting.name, *setting.keys):
                owner = self._names.setdefault(name, part)
                if owner != part:
                    self._clashes.append(("setting", name, owner, part))
                self._add_sections(part, name)
            for variable in setting.shared_aliases:
                self._shared.add((variable, part))
            for variable in setting.variables:
                owner = self._variables.setdefault(variable, part)
                if owner != part and not {(variable, owner), (variable, part)} <= self._shared:
                    self._clashes.append(("variable", variable, owner, part))

    def conflicts(self) -> dict[str, str]:
        # A mapping in the file is either the value of a setting or a section.
        for section in self._sections.keys() & self._names.keys():
            owner = self._names[section]
            for part in self._sections[section] - {owner}:
                self._clashes.append(("setting", section, owner, part))
        conflicts: dict[str, str] = {}
        for kind, claim, owner, other in self._clashes:
            for part, rival in ((owner, other), (other, owner)):
                if part != _CORE:
                    conflicts.setdefault(
                        part, f"declares the {kind} {claim}, which belongs to {rival}"
                    )
        return conflicts

    def _add_sections(self, part: str, name: str) -> None:
        """Add what the file must have above a setting."""
        while name := name.rpartition(".")[0]:
            owners = self._sections.setdefault(name, set())
            if part in owners:
                return
            owners.add(part)
