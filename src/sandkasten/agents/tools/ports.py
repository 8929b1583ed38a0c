"""What the tools need of others that not every process has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Packages(Protocol):
    """Images with packages in them, made when they are first asked for and kept."""

    async def image_with(
        self, image: str | None, *, pip: Sequence[str], npm: Sequence[str], tenant: str
    ) -> str:
        """The name of `image` with these installed; ProvisioningFailed when that cannot be."""
        ...
