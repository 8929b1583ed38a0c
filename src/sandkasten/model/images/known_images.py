"""Images that are built by their name alone: a suite of Debian, its packages, and Python packages.

No registry has them. The command line builds them; hints name them.
"""

from __future__ import annotations

from typing import Final

from sandkasten.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KnownImage:
    suite: str
    packages: tuple[str, ...]
    """Packages of Debian."""
    pip: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Run as root when the packages are installed."""


# The account of E2B's images has another name than ours. Its home is the workspace, so the image
# has no directory for it.
_E2B_USER: Final = (
    "usermod --login user --home /home/user sandbox && groupmod --new-name user sandbox",
)

_BASE: Final = ("bash", "coreutils", "procps", "ca-certificates")
_PIP: Final = ("python3", "python3-pip", "python3-venv")
_NODE: Final = ("nodejs", "npm")
# What a model types after ModuleNotFoundError and "command not found".
_TOOLS: Final = (*_BASE, *_PIP, "python-is-python3", "git", "curl")
_SCIENCE: Final = tuple(
    f"python3-{name}"
    for name in (
        "ipykernel", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "pil", "openpyxl"
    )
)  # fmt: skip

KNOWN_IMAGES: Final[dict[str, KnownImage]] = {
    "datascience": KnownImage("bookworm", (*_TOOLS, *_SCIENCE)),
    # These two have the names of E2B's templates, and what programs for these expect.
    "base": KnownImage("bookworm", (*_TOOLS, *_NODE, "build-essential"), commands=_E2B_USER),
    # Kernels for R (r-cran-irkernel), JavaScript and TypeScript (deno). Later versions of deno have
    # a kernel that does not tell a syntax error.
    "code-interpreter-v1": KnownImage(
        "bookworm",
        (*_TOOLS, *_SCIENCE, *_NODE, "build-essential", "sudo", "jq", "r-cran-irkernel"),
        ("deno==2.7.14",),
        _E2B_USER,
    ),
    # Packages of the Dockerfiles in images/, which a test compares.
    "sandbox-runtime:base": KnownImage("bookworm", _BASE),
    "sandbox-runtime:python": KnownImage("bookworm", (*_BASE, *_PIP)),
    "sandbox-runtime:node": KnownImage("bookworm", (*_BASE, *_NODE)),
}


def known_image(name: str) -> str | None:
    """Return the name by which an image is built, or None if it is not a known one."""
    bare = name.removesuffix(":latest")
    return bare if bare in KNOWN_IMAGES else None
