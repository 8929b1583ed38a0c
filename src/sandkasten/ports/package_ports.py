"""Packages for sandboxes: who provides them, and the throw-away places they are installed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.model.sandbox.package_sets import Packages, PackageSet


class Site(Protocol):
    """One throw-away sandbox without a network; what it says and makes is a stranger's."""

    async def run(
        self, command: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float
    ) -> ExecResult:
        """CommandNotFound when the image has no such program."""
        ...

    def tar(self, path: str) -> AsyncIterator[bytes]:
        """A directory of the sandbox as it is now."""
        ...


class Sites(Protocol):
    def open(
        self, image: Image, backend: str, mounts: tuple[HostMount, ...], *, disk_bytes: int
    ) -> AbstractAsyncContextManager[Site]:
        """Gone when the block ends, however it ends. UnsupportedByBackend where it has no mounts"""
        ...

    async def mounted(self) -> AbstractSet[str]:
        """Names of all mounts that sandboxes have now."""
        ...


class Provisioner(Protocol):
    async def provide(
        self, packages: Packages, image: Image, backend: str, sites: Sites
    ) -> Sequence[PackageSet]:
        """Return the installed sets; what is not there yet is installed in `sites`.

        Raises ProvisioningFailed or PolicyDenied.
        """
        ...

    async def present(self, key: str) -> bool:
        """Whether a set is still there. Asked after its use was written into the ledger."""
        ...
