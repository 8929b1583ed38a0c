"""Settings as fields of dataclasses, each declared once and read from flags, environment and file.

A section is a frozen dataclass. `setting()` gives a field its public name, its parser, its
default, one sentence of documentation and its environment variables. `SettingSource` fills
sections and records where every value came from.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import Field

T = TypeVar("T")
D = TypeVar("D")
Shown = str | int | float | bool | list[str] | None
"""A value as `config show` prints it."""

_KEY: Final = "setting"


class Section(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Origin:
    """One line of `config show --origin`."""

    name: str
    value: Shown
    origin: str


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    parse: Callable[[str, object], object]
    """Takes the name to put into messages, and the value as it was written."""
    default: object
    doc: str
    aliases: tuple[str, ...]
    show: Callable[[Any], Shown]
    keys: tuple[str, ...] = ()
    """Other names of it in the settings file."""
    shared_aliases: tuple[str, ...] = ()
    """Further variables that settings of other parts read too, if these also share them."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the environment variables that set it; the first one wins."""
        name = self.name.removeprefix("backends.").upper().replace(".", "_")
        return (f"SANDKASTEN_{name}", *self.aliases, *self.shared_aliases)

    def shown(self, value: object) -> Shown:
        """Return the value as it is printed; None and "" mean that it is not set."""
        return None if value is None or value == "" else self.show(value)


def plain(value: Any) -> Shown:
    """Return paths as strings and sequences as lists of strings."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [str(item) for item in value]
    shown: Shown = value
    return shown


def masked(value: object) -> Shown:
    return "(set)"


def setting(
    name: str,
    parse: Callable[[str, object], T],
    default: D,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    show: Callable[[T], Shown] = plain,
    keys: tuple[str, ...] = (),
    shared_aliases: tuple[str, ...] = (),
) -> T | D:
    """Declare a field of a section. A value with its own `show` may be secret: repr omits it."""
    about = {_KEY: Setting(name, parse, default, doc, aliases, show, keys, shared_aliases)}
    # A field stands for its value, as in the stubs of dataclasses.
    declared: T | D = field(default_factory=lambda: default, metadata=about, repr=show is plain)
    return declared


def settings_of(section: type[Section]) -> list[Setting]:
    return [attribute.metadata[_KEY] for attribute in fields(section) if _KEY in attribute.metadata]


def value_of(section: Section, name: str) -> object:
    """Return the value of a setting in a section; None if the section does not declare it."""
    for attribute in fields(section):
        if _KEY in attribute.metadata and attribute.metadata[_KEY].name == name:
            return getattr(section, attribute.name)
    return None


class SettingSource:
    """Reads sections: flags over environment over file over default."""

    def __init__(
        self,
        flags: Mapping[str, str],
        environ: Mapping[str, str],
        file_values: Mapping[str, object],
        file_origin: str,
    ) -> None:
        self._flags = flags
        self._environ = environ
        self._file_values = file_values
        self._file_origin = file_origin
        self.origins: dict[str, Origin] = {}
        """By name, in the order of reading."""

    def read(self, section: type[S]) -> S:
        """Return the section; InvalidConfiguration names the setting that is malformed."""
        values: dict[str, object] = {}
        for attribute in fields(section):
            declared: Setting | None = attribute.metadata.get(_KEY)
            if declared is not None:
                value, origin = self._find(declared)
                values[attribute.name] = value
                self.origins[declared.name] = Origin(declared.name, declared.shown(value), origin)
        return section(**values)

    def show_default(self, name: str, value: Shown) -> None:
        """Record the value that an unset setting has in effect."""
        if self.origins[name].value is None:
            self.origins[name] = replace(self.origins[name], value=value)

    def _find(self, declared: Setting) -> tuple[object, str]:
        name = declared.name
        if name in self._flags:
            return declared.parse(name, self._flags[name]), "flag"
        for variable in declared.variables:
            # An empty variable means "not set" in shell scripts.
            if self._environ.get(variable):
                return declared.parse(variable, self._environ[variable]), f"env {variable}"
        written = [key for key in (*declared.keys, name) if key in self._file_values]
        if len(written) > 1 and len({repr(self._file_values[key]) for key in written}) > 1:
            raise InvalidConfiguration(
                f"{' and '.join(written)} contradict each other in the settings file",
                hint="they are the same setting; keep one of them",
                setting=name,
            )
        for key in written:
            origin = self._file_origin if key == name else f"{self._file_origin} ({key})"
            return declared.parse(key, self._file_values[key]), origin
        return declared.default, "default"
