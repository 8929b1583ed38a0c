"""Images that are built by name.

No registry has them: hints name them, and no request pulls them. What they consist of is known to
the part that builds them.
"""

from __future__ import annotations

from typing import Final

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass

KNOWN_IMAGES: Final = (
    "datascience",
    # These two have the names of E2B's templates.
    "base",
    "code-interpreter-v1",
    "sandbox-runtime:base",
    "sandbox-runtime:python",
    "sandbox-runtime:node",
)
# Kernels that come as packages of Python, in an image or in a sandbox. Later versions of deno have
# a kernel that does not report a syntax error.
DENO: Final = "deno==2.7.14"
JJAVA: Final = "jjava==1.0a8"


@dataclass(frozen=True, slots=True)
class KnownImage:
    """A suite of Debian, its packages, Python packages, and commands."""

    suite: str
    packages: tuple[str, ...]
    """Packages of Debian."""
    pip: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Run as root when all packages are installed."""

    def steps(self, *pip: str) -> list[dict[str, object]]:
        """Return the steps of a recipe that follow the packages of Debian; `pip`: more packages of
        Python.
        """
        packages = [*self.pip, *pip]
        steps: list[dict[str, object]] = [{"pip": packages}] if packages else []
        steps += [{"run": command} for command in self.commands]
        return steps


def known_image(name: str) -> str | None:
    """Return the name by which an image is built, or None if it is not a known one."""
    bare = name.removesuffix(":latest")
    return bare if bare in KNOWN_IMAGES else None


def checked_known_image(name: str) -> str:
    """Return the name without `:latest`. Raise InvalidRequest if no known image has it."""
    image = known_image(name)
    if image is None:
        raise InvalidRequest(
            f"no image is built by the name {name[:200]}",
            hint=f"names that are: {', '.join(KNOWN_IMAGES)}",
            field="name",
        )
    return image
