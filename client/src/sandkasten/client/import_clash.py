"""Detect another project's package that has the import name `sandkasten` too.

Both write to the same directory, so the one that is installed last replaces files of the other,
and removing either breaks what is left.
"""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import CLIENT_DISTRIBUTION


@dataclass(frozen=True, slots=True)
class ImportClash:
    message: str
    remedy: str = (
        f"pip uninstall sandkasten {CLIENT_DISTRIBUTION}, then install {CLIENT_DISTRIBUTION} again"
    )

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.remedy})"


def find_clash() -> ImportClash | None:
    """Return how the other package clashes with this one, or None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution("sandkasten")
    except PackageNotFoundError:
        return None
    if other.entry_points.select(value="sandkasten.cli.main:main"):
        # This project as it was called before; its files are the ones that run.
        return None
    return ImportClash(
        f"the distribution sandkasten {other.version}, another project with the same import name, "
        "is installed; the two replace each other's files"
    )
