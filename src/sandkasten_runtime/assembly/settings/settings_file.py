"""The settings file: found, read and flattened to dotted names.

YAML aliases, tags and duplicate keys are refused: none of them has a use here, and each can make a
small file mean something large or unexpected.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import SECTION_EXTRAS
from sandkasten_runtime.assembly.settings.unknown_settings import (
    is_of_absent_server,
    unknown_setting,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "sandkasten.yaml"
SYSTEM = Path("/etc/sandkasten") / NAME
MAX_BYTES = 1024 * 1024
# `policy.images.signatures` is the deepest setting: a list of mappings with a list of names.
_MAX_DEPTH = 7


@dataclass(frozen=True, slots=True)
class SettingsFile:
    path: Path
    ours_only: bool = False
    """Whether it is refused if another user could have written it."""


def find_file(named: str | None, cwd: Path | None) -> SettingsFile | None:
    """Return the named file, which must exist; else the one in `cwd`, else the system's."""
    if named:
        path = Path(named)
        if not path.is_file():
            raise InvalidConfiguration(
                f"settings file {named[:200]} does not exist",
                hint="check --config or SANDKASTEN_CONFIG",
                setting="config",
            )
        return SettingsFile(path)
    here = (cwd or Path.cwd()) / NAME
    if here.is_file():
        return SettingsFile(here, ours_only=True)
    return SettingsFile(SYSTEM) if SYSTEM.is_file() else None


def _check_ours(path: Path, status: os.stat_result) -> None:
    """Refuse a file that another user could have written."""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfiguration(
            f"{path} can be written by other users",
            hint="chown it and chmod go-w, or name another file with SANDKASTEN_CONFIG",
            setting="config",
        )


def read_file(file: SettingsFile, known_names: Sequence[str]) -> dict[str, object]:
    """Return values by dotted name; InvalidConfiguration for a name that is not known."""
    path = file.path
    tree = read_tree(path, ours_only=file.ours_only)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise _invalid(path, "must be a mapping", "write `name: value` lines")
    # Also names of a plugin that is not installed, so that its extra can be named.
    names = (*known_names, *SECTION_EXTRAS)
    sections = {name[:end] for name in names for end, letter in enumerate(name) if letter == "."}
    flat = _flat(path, tree, sections, "")
    others = {name for name in flat if name not in known_names}
    for name in others:
        if not is_of_absent_server(name, known_names):
            raise unknown_setting(f"{path} has an unknown key {name[:80]!r}", name, known_names)
    # `key:` without a value means the default.
    return {name: value for name, value in flat.items() if value is not None and name not in others}


def _flat(
    path: Path, tree: dict[object, object], sections: set[str], above: str
) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        if name not in sections:
            flat[name] = value
        elif isinstance(value, dict):
            flat |= _flat(path, value, sections, f"{name}.")
        else:
            raise _invalid(path, f"needs a mapping under {name}", f"indent its keys under {key}:")
    return flat


def read_tree(path: Path, max_depth: int = _MAX_DEPTH, *, ours_only: bool = False) -> object:
    """Read a small YAML file as plain values, nested at most that deep.

    `ours_only` refuses a file that another user could have written. That is asked of the open file,
    because the owner of its directory can put another one in its place at any time.
    """
    try:
        # Non-blocking: opening a FIFO without a writer would block for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _invalid(path, "is not a regular file", "name a file")
            if ours_only:
                _check_ours(path, status)
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        missing = isinstance(exc, FileNotFoundError | NotADirectoryError)
        hint = "check the path" if missing else "check its owner and mode"
        raise _invalid(path, f"cannot be read: {exc.strerror}", hint) from exc
    if len(data) > MAX_BYTES:
        raise _invalid(path, f"is larger than {MAX_BYTES} bytes", "remove what is not a setting")
    return _parse(path, data, max_depth)


def _parse(path: Path, data: bytes, max_depth: int) -> object:
    # Imported here: most processes have no settings file, and the import takes longer than
    # making a sandbox.
    import yaml

    class Loader(yaml.SafeLoader):
        """Built per file, so that messages can name it."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _invalid(path, "uses a YAML alias", "write the value out")
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "tag", None):
                raise _invalid(path, "uses a YAML tag", "write a plain value")
            depth = getattr(self, "_depth", 0) + 1
            if depth > max_depth:
                raise _invalid(path, "is nested too deep", "no setting has that many levels")
            self._depth = depth
            try:
                return super().compose_node(parent, index)
            finally:
                self._depth = depth - 1

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise _invalid(path, f"has the key {str(key)[:80]} twice", "keep one of them")
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(data, Loader=Loader)  # noqa: S506  (a SafeLoader, narrowed further)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise _invalid(path, f"is not valid YAML{where}", "check its indentation") from exc
    except (ValueError, RecursionError) as exc:
        raise _invalid(path, "is not valid YAML", "check its values") from exc


def _invalid(path: Path, what: str, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{path} {what}", hint=hint)
