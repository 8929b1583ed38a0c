"""Provide package sets: each is made once and then mounted for every request of the same set.

Implements `ports.Provisioner`. The key of a set is the image, the packages and their source. The
network of this machine is only used to fetch files; everything that runs, builds included, runs in
a sandbox without one. Raises ProvisioningFailed, PolicyDenied, QuotaExceeded or Busy and then
leaves nothing. If a caller is cancelled, others that wait for the same set continue.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from sandkasten.errors import (
    Busy,
    PolicyDenied,
    ProvisioningFailed,
)
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH, HostMount
from sandkasten.model.sandbox.package_sets import (
    MOUNT_PREFIX,
    NODE_DIR,
    PYTHON_DIR,
    Ecosystem,
    Packages,
    PackageSet,
    check_allowed,
)
from sandkasten_build.builder.build_cache import build_key
from sandkasten_build.packages.package_output import receive, unpack
from sandkasten_build.packages.package_rules import address
from sandkasten_build.packages.package_shelf import Shelf
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.model.images.resolved_image import Image
    from sandkasten.ports import EventSink, Sites
    from sandkasten_build.packages.package_rules import PackageRules

# Each one is a program that fetches and a sandbox that installs.
_AT_ONCE: Final = 4
# A build may take until its deadline. The others of a tenant wait, so that there is a place left.
_OF_ONE_TENANT: Final = _AT_ONCE - 1
# The fetcher has the same deadline and reports more of what it was doing.
_MARGIN_S: Final = 5.0
_FORM: Final = 2
"""Version of the set format. If it changes, every set is made again."""


class Provisioner:
    def __init__(
        self,
        root: Path,
        rules: PackageRules,
        environ: Mapping[str, str],
        events: EventSink | None = None,
    ) -> None:
        self._events = events
        self._rules = rules
        self._environ = environ
        self._shelf = Shelf(root, max_bytes=rules.max_bytes)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        # Only tenants that install something now.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def provide(
        self, packages: Packages, image: Image, backend: str, sites: Sites, tenant: str
    ) -> tuple[PackageSet, ...]:
        if not self._rules.enabled:
            raise PolicyDenied(
                "requests for packages are not permitted here",
                hint="packages.enabled is false; use an image that has the packages",
                rule="packages.enabled",
            )
        check_allowed(packages, self._rules.allow)
        return tuple(
            [
                await self._provide(ecosystem, specs, image, backend, sites, tenant)
                for ecosystem, specs in packages.ecosystems
            ]
        )

    async def present(self, key: str) -> bool:
        return self._shelf.has(key)

    async def _provide(
        self,
        ecosystem: Ecosystem,
        specs: tuple[str, ...],
        image: Image,
        backend: str,
        sites: Sites,
        tenant: str,
    ) -> PackageSet:
        source = await self._source(ecosystem)
        key = await asyncio.to_thread(_key, ecosystem, specs, image, source)
        package_set = _shown(ecosystem, key, self._shelf.tree(key))
        if self._shelf.use(key):
            return package_set
        limit_s = self._rules.timeout_s
        share = self._shares.setdefault(tenant, asyncio.Semaphore(_OF_ONE_TENANT))
        try:
            # A caller may wait for another that started just before it, and then work itself.
            async with asyncio.timeout(2 * limit_s), self._shelf.alone(key):
                if not self._shelf.use(key):
                    async with share, self._gate:
                        await self._make_in_time(key, ecosystem, specs, image, backend, sites)
        except TimeoutError as exc:
            raise Busy(
                f"packages {', '.join(specs)} were not installed within {2 * limit_s:g} s",
                hint="another process is installing the same packages; retry",
            ) from exc
        return package_set

    async def _source(self, ecosystem: Ecosystem) -> list[str]:
        if ecosystem == "pip":
            return await asyncio.to_thread(lambda: self._rules.pip_source)
        if self._rules.npm_registry is None:
            # Once per process: a daemon does not follow a file that is not its own.
            from sandkasten_build.packages import npm_packages

            await asyncio.to_thread(self._shelf.prepare)
            async with self._shelf.scratch() as scratch:
                configured = await npm_packages.configured_registry(scratch, self._environ)
            self._rules = replace(self._rules, npm_registry=configured)
        registry = address(self._rules.npm_registry or "")
        return [registry] if self._rules.build else [registry, "without scripts"]

    async def _make_in_time(
        self,
        key: str,
        ecosystem: Ecosystem,
        specs: tuple[str, ...],
        image: Image,
        backend: str,
        sites: Sites,
    ) -> None:
        limit_s = self._rules.timeout_s
        fields: dict[str, str | float] = {"ecosystem": ecosystem, "packages": ", ".join(specs)}
        self._emit("packages.install_started", fields)
        started, done = time.monotonic(), False
        try:
            async with asyncio.timeout(limit_s + _MARGIN_S):
                await self._make(key, ecosystem, specs, image, backend, sites)
            done = True
        except TimeoutError as exc:
            raise ProvisioningFailed(
                f"installing {', '.join(specs)} took longer than {limit_s:g} s",
                hint="request less, or raise packages.timeout_seconds",
                packages=list(specs),
            ) from exc
        finally:
            fields["seconds"] = round(time.monotonic() - started, 3)
            self._emit("packages.installed" if done else "packages.install_failed", fields)

    def _emit(self, event: str, fields: Mapping[str, str | float]) -> None:
        if self._events is not None:
            self._events.emit(event, fields)

    async def _make(
        self,
        key: str,
        ecosystem: Ecosystem,
        specs: tuple[str, ...],
        image: Image,
        backend: str,
        sites: Sites,
    ) -> None:
        # Imported here: most processes never install anything.
        from sandkasten_build.packages import npm_packages, pip_packages

        await to_the_end(self._shelf.sweep)
        ends_at = time.monotonic() + self._rules.timeout_s
        async with self._shelf.scratch() as scratch:
            downloads, output = scratch / "given", scratch / "made"
            downloads.mkdir()
            (output / "tree").mkdir(parents=True)
            mounts = [HostMount(os.fspath(downloads), pip_packages.GIVEN)]
            if ecosystem == "pip":
                tool = await to_the_end(pip_packages.tool, self._shelf)
                mounts.append(HostMount(os.fspath(tool), pip_packages.TOOL))
            disk = self._rules.max_bytes
            async with sites.open(image, backend, tuple(mounts), disk_bytes=disk) as site:
                work = pip_packages.install if ecosystem == "pip" else npm_packages.install
                left_s = max(1.0, ends_at - time.monotonic())
                path = await work(specs, site, downloads, self._rules, self._environ, left_s)
                archive = scratch / "made.tar"
                await receive(site.tar(path), archive, disk, specs)
            await to_the_end(shutil.rmtree, downloads)
            need = archive.stat().st_size
            in_use = await _keys_in_use(sites)
            await to_the_end(self._shelf.make_room, need, in_use)
            await to_the_end(unpack, archive, output / "tree", self._rules.max_bytes)
            about: dict[str, object] = {"packages": list(specs), "image": image.name}
            await to_the_end(self._shelf.put, key, output, about)


async def _keys_in_use(sites: Sites) -> frozenset[str]:
    return frozenset(name.removeprefix(MOUNT_PREFIX) for name in await sites.mounted())


def _key(ecosystem: Ecosystem, specs: tuple[str, ...], image: Image, source: list[str]) -> str:
    return build_key(
        form=_FORM,
        ecosystem=ecosystem,
        packages=list(specs),
        image=_identity(image, "python3" if ecosystem == "pip" else "node"),
        machine=platform.machine(),
        source=source,
    )


def _shown(ecosystem: Ecosystem, key: str, tree: Path) -> PackageSet:
    if ecosystem == "pip":
        mount = HostMount(os.fspath(tree), PYTHON_DIR, content=key)
        return PackageSet(key, mount, path=f"{PYTHON_DIR}/bin", variable="PYTHONPATH")
    mount = HostMount(os.fspath(tree), NODE_DIR, content=key)
    return PackageSet(key, mount, path=f"{NODE_DIR}/.bin", variable="NODE_PATH")


def _identity(image: Image, program: str) -> str:
    """Return the identity of an image for its sets; for the host image, its interpreter."""
    if image.kind != "host":
        return f"{image.kind} {image.id or image.name}"
    for directory in DEFAULT_PATH.split(":"):
        path = os.path.realpath(os.path.join(directory, program))
        try:
            status = os.stat(path)
        except OSError:
            continue
        return f"host {path} {status.st_size} {status.st_mtime_ns}"
    return "host"
