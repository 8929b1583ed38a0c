"""The runtimes of code, and every other name by which requests and files know them. Pure."""

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
    name: str
    program: str
    suffix: str
    """The end of the name of a file with such code."""
    image: str
    """The alias of an image that has this runtime."""
    remedy: str
    held: str | None = None
    """The program that a pooled sandbox may have started for it."""
    once: tuple[str, ...] = ()
    """Options of the program for code that runs once."""

    @property
    def main(self) -> str:
        """The name of the file that holds the code of a one-shot."""
        return f"main{self.suffix}"


RUNTIMES: Final[Mapping[str, Runtime]] = MappingProxyType(
    {
        runtime.name: runtime
        for runtime in (
            # -B: a byte-code cache is useless to code that runs once.
            Runtime(
                "python", "python3", ".py", "python", "install python3 on the host",
                HELD_PYTHON, ("-B",),
            ),
            Runtime("node", "node", ".js", "node", "install nodejs on the host"),
            Runtime("bash", "bash", ".sh", "bash", "install bash on the host, or use runtime sh"),
            Runtime("sh", "sh", ".sh", "base", "use an image that has a shell"),
        )
    }
)  # fmt: skip
_ALIASES: Final = {
    "linux": "bash",
    "shell": "bash",
    "python3": "python",
    "javascript": "node",
    "py": "python",
    "js": "node",
}
RUNTIME_NAMES: Final = (*RUNTIMES, *_ALIASES)
# Where a kernel's language has another name than the runtime, or than what people write.
_LANGUAGES: Final = {"node": "javascript", "sh": "bash", "ts": "typescript"}
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


def kernel_language(name: str) -> str:
    """Return the language of a kernel, given by a name of a runtime; any other name is its own."""
    runtime = _ALIASES.get(name, name)
    return _LANGUAGES.get(runtime, runtime)


def image_alias(name: str) -> str:
    """Return the alias of an image that has the runtime; any other name is an image's own."""
    if name in IMAGE_ALIASES:
        return name
    runtime = runtime_named(name)
    return name if runtime is None else runtime.image
