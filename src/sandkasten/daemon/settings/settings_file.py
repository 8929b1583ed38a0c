"""The settings file: found, read and flattened to dotted names, with everything odd refused.

YAML without anchors, tags or repeated keys: none of them has a use here, and each is a way
to make a small file mean something large or something else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "sandkasten.yaml"
SYSTEM = Path("/etc/sandkasten") / NAME
MAX_BYTES = 1024 * 1024
# `images.registries.<host>.<key>` and `policy.mounts.<name>.<key>` are the deepest a setting goes.
_MAX_DEPTH = 5


def find_file(named: str | None, cwd: Path | None) -> Path | None:
    """The file named, which must exist; else the one here, else the machine's, else none."""
    if named:
        path = Path(named)
        if not path.is_file():
            raise InvalidConfiguration(
                f"there is no settings file {named[:200]}", hint="check the path", setting="config"
            )
        return path
    here = (cwd or Path.cwd()) / NAME
    if here.is_file():
        _check_ours(here)
        return here
    return SYSTEM if SYSTEM.is_file() else None


def _check_ours(path: Path) -> None:
    """A file that happens to lie here is the operator's word only if nobody else wrote it."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfiguration(
            f"{path} can be written by somebody else",
            hint="chown it and chmod go-w, or name the file that is meant with SANDKASTEN_CONFIG",
            setting="config",
        )


def read_file(path: Path, known: Mapping[str, object]) -> dict[str, object]:
    """Dotted names and their values; InvalidConfiguration for a name that is not `known`."""
    tree = read_tree(path)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise _refuse(path, "is not a mapping", "write `name: value` lines")
    sections = {name[:end] for name in known for end, letter in enumerate(name) if letter == "."}
    flat = _flat(path, tree, sections, "")
    for name in flat:
        if name not in known:
            raise InvalidConfiguration(
                f"{path} has an unknown key {name[:80]!r}",
                hint=did_you_mean(name, known),
                setting=name[:80],
            )
    # `key:` with nothing behind it says that the default is wanted.
    return {name: value for name, value in flat.items() if value is not None}


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
            raise _refuse(path, f"has no mapping under {name}", f"indent its keys under {key}:")
    return flat


def read_tree(path: Path) -> object:
    """A small YAML file as plain values; InvalidConfiguration for one that is none."""
    try:
        # Not waited for: a FIFO that nobody writes to would hold us for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _refuse(path, "is no regular file", "name a file")
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise _refuse(path, f"cannot be read: {exc.strerror}", "check its owner and mode") from exc
    if len(data) > MAX_BYTES:
        raise _refuse(path, f"is larger than {MAX_BYTES} bytes", "write less")
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> object:
    # Imported here: most processes have no settings file, and the import takes longer than
    # making a sandbox.
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses what `_refuse` names; built per file so that messages can name it."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _refuse(path, "uses a YAML alias", "write the value out")
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "tag", None):
                raise _refuse(path, "uses a YAML tag", "write a plain value")
            depth = getattr(self, "_depth", 0) + 1
            if depth > _MAX_DEPTH:
                raise _refuse(path, "is nested too deep", "no key lies that deep")
            self._depth = depth
            try:
                return super().compose_node(parent, index)
            finally:
                self._depth = depth - 1

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise _refuse(path, f"says {str(key)[:80]} twice", "keep one of them")
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(data, Loader=Loader)  # noqa: S506  (a SafeLoader, narrowed further)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise _refuse(path, f"is not valid YAML{where}", "check its indentation") from exc
    except (ValueError, RecursionError) as exc:
        raise _refuse(path, "is not valid YAML", "check its values") from exc


def _refuse(path: Path, what: str, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{path} {what}", hint=hint)
