"""The runtimes of one-shots, and every other name by which requests and files know them. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

HELD_PYTHON: Final = "held_python"
"""The id of an interpreter that a sandbox of the warm pool has started."""


@dataclass(frozen=True, slots=True)
class Runtime:
    program: tuple[str, ...]
    main: str
    """The name of the file that holds the code."""
    image: str
    """The alias of an image that has this runtime."""
    remedy: str
    held: str | None = None
    """The program that a pooled sandbox may have started for it."""


RUNTIMES: Final[Mapping[str, Runtime]] = MappingProxyType(
    {
        # -B: a byte-code cache is useless to code that runs once.
        "python": Runtime(
            ("python3", "-B"), "main.py", "python", "install python3 on the host", HELD_PYTHON
        ),
        "node": Runtime(("node",), "main.js", "node", "install nodejs on the host"),
        "bash": Runtime(
            ("bash",), "main.sh", "bash", "install bash on the host, or use runtime sh"
        ),
        "sh": Runtime(("sh",), "main.sh", "base", "use an image that has a shell"),
    }
)
_ALIASES: Final = {"linux": "bash", "shell": "bash", "python3": "python", "javascript": "node"}
RUNTIME_NAMES: Final = (*RUNTIMES, *_ALIASES)
IMAGE_ALIASES: Final = ("python", "node", "bash", "shell", "linux", "base", "host")
"""The names that mean an image which the operator chooses: a runtime's, `base` and `host`."""
RUNTIME_OF_SUFFIX: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".py": "python",
        ".js": "node",
        ".mjs": "node",
        ".cjs": "node",
        ".sh": "bash",
        ".bash": "bash",
    }
)


def runtime_named(name: str) -> Runtime | None:
    return RUNTIMES.get(_ALIASES.get(name, name))


def image_alias(name: str) -> str:
    """Return the alias of an image that has the runtime; any other name is an image's own."""
    if name in IMAGE_ALIASES:
        return name
    runtime = runtime_named(name)
    return name if runtime is None else runtime.image
