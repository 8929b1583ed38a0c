"""Packages for sandboxes: their providers, and the temporary sandboxes they are installed in."""

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
    """One temporary sandbox without a network; its output and files are untrusted."""

    async def run(
        self, command: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float
    ) -> ExecResult:
        """Run a command. Raise CommandNotFound if the image has no such program."""
        ...

    async def shown(self, target: str) -> str:
        """Return the path inside that has the present content of the mount at `target`.

        A backend that does not see this machine's files gets a copy, each time.
        """
        ...

    def tar(self, path: str) -> AsyncIterator[bytes]:
        """Yield a tar of a directory of the sandbox as it is now."""
        ...


class Sites(Protocol):
    def open(
        self, image: Image, backend: str, mounts: tuple[HostMount, ...], *, disk_bytes: int
    ) -> AbstractAsyncContextManager[Site]:
        """Open a site, which is removed when the block ends."""
        ...

    async def mounted(self) -> AbstractSet[str]:
        """Return the names of all mounts that sandboxes have now."""
        ...


class Provisioner(Protocol):
    async def provide(
        self, packages: Packages, image: Image, backend: str, sites: Sites, tenant: str
    ) -> Sequence[PackageSet]:
        """Return the installed sets; missing ones are installed in `sites`, on behalf of `tenant`.

        Raises ProvisioningFailed or PolicyDenied.
        """
        ...

    async def present(self, key: str) -> bool:
        """Return whether a set still exists. Called after its use was written to the ledger."""
        ...
