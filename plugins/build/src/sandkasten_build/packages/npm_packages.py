"""npm packages: fetched from a registry here, unpacked by the image's node.

No npm is needed, here or in the image. Files come from the registry's own origin and are checked
against its digests; they are opened, and install scripts run, only in a sandbox without a network.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from sandkasten.disk.os_errors import translated
from sandkasten.errors import (
    CommandNotFound,
    InvalidImage,
    ProvisioningFailed,
    RegistryUnavailable,
)
from sandkasten.outgoing_http import read_whole
from sandkasten_build.child_program import child_environment
from sandkasten_build.packages.npm_tree import Machine, resolve
from sandkasten_build.packages.npm_unpack import LOOK, SCRIPTS, UNPACK
from sandkasten_build.packages.package_fetch import fetch
from sandkasten_build.packages.package_rules import address
from sandkasten_build.packages.package_shelf import settle
from sandkasten_build.packages.pip_packages import GIVEN, MADE, failed_inside
from sandkasten_runtime.images.registry.registry_http import (
    BROKEN,
    Connections,
    Patience,
    connected,
    origin,
)
from sandkasten_runtime.images.thread_work import all_or_none, to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path

    import aiohttp

    from sandkasten.ports import Site
    from sandkasten_build.packages.npm_tree import Json, Placed
    from sandkasten_build.packages.package_rules import PackageRules

_PROBE_S: Final = 60.0
_AT_ONCE: Final = 8
# The largest of the public registry are about 10 MB in the short form requested here.
_MOST_ABOUT: Final = 64 << 20
_CHUNK: Final = 256 * 1024
_SHORT_FORM: Final = "application/vnd.npm.install-v1+json, application/json;q=0.8"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NPM_OWN: Final = ("npm_config_registry", "NPM_CONFIG_REGISTRY", "NPM_CONFIG_USERCONFIG", "HOME")
_WORD: Final = re.compile(r"[a-z0-9_]{0,32}\Z")


async def configured_registry(scratch: Path, environ: Mapping[str, str]) -> str:
    """Return the registry that this machine's npm is configured for. Raise ProvisioningFailed
    if unknown.
    """
    program = await asyncio.to_thread(shutil.which, "npm", path=_PATH)
    if program is None:
        raise ProvisioningFailed(
            "no registry of npm packages is configured",
            hint="set packages.npm_registry to its address",
        )
    npm_variables = {name: environ[name] for name in _NPM_OWN if environ.get(name)}
    answer = await fetch(
        (program, "config", "get", "registry"),
        env=child_environment(environ, npm_config_update_notifier="false", **npm_variables),
        into=scratch,
        max_bytes=_MOST_ABOUT,
        timeout_s=_PROBE_S,
        what="asking npm for its registry",
    )
    for line in reversed(answer.tail):
        if line.startswith(("http://", "https://")) and " " not in line:
            return line.rstrip("/")
    raise ProvisioningFailed(
        "npm did not return its registry:\n" + "\n".join(answer.tail),
        hint="set packages.npm_registry to its address",
    )


async def install(
    specs: Sequence[str],
    site: Site,
    downloads: Path,
    rules: PackageRules,
    environ: Mapping[str, str],
    timeout_s: float,
) -> str:
    """Install the packages; return the sandbox directory that contains them."""
    machine = await _look(site)
    patience = Patience(attempts=3, whole_s=timeout_s)
    await _fetch(specs, machine, downloads, rules, environ, patience)
    tarballs = await site.shown(GIVEN)
    result = await site.run(
        ("node", "-e", UNPACK, tarballs, MADE), env={"NODE_OPTIONS": ""}, timeout_s=timeout_s
    )
    if result.exit_code != 0:
        raise failed_inside("the npm packages could not be unpacked", specs, result)
    if rules.build:
        result = await site.run(
            ("node", "-e", SCRIPTS, tarballs, MADE), env={"NODE_OPTIONS": ""}, timeout_s=timeout_s
        )
        if result.exit_code != 0:
            raise failed_inside("an install script of the npm packages failed", specs, result)
    return MADE


async def _look(site: Site) -> Machine:
    try:
        command = ("node", "-e", LOOK)
        result = await site.run(command, env={"NODE_OPTIONS": ""}, timeout_s=_PROBE_S)
    except CommandNotFound as exc:
        raise ProvisioningFailed(
            "the image has no node, which npm packages require",
            hint="use an image that has node, such as node",
        ) from exc
    if result.exit_code != 0:
        raise failed_inside("the platform of the image's node could not be read", (), result)
    try:
        platform = json.loads(result.stdout)
        words = [platform[name] for name in ("os", "cpu", "libc")]
        if not all(isinstance(word, str) and _WORD.match(word) for word in words):
            raise ValueError("not a plain word")
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ProvisioningFailed(
            "node of the image reported an invalid platform or version", hint="use another image"
        ) from exc
    return Machine(*words)


async def _fetch(
    specs: Sequence[str],
    machine: Machine,
    downloads: Path,
    rules: PackageRules,
    environ: Mapping[str, str],
    patience: Patience,
) -> None:
    url = rules.npm_registry or ""
    budget = _Budget(rules.max_bytes)
    try:
        async with connected(
            urlsplit(address(url)).netloc, patience, environ=environ
        ) as connections:
            registry = _Registry(url, connections)
            placed = await resolve(specs, machine, registry.look_up)
            await all_or_none(
                [
                    asyncio.create_task(
                        registry.tarball(package, downloads / f"{number}.tgz", budget)
                    )
                    for number, package in enumerate(placed)
                ]
            )
    except RegistryUnavailable as exc:
        raise _trouble(", ".join(specs), exc.message) from exc
    await to_the_end(_write_plan, placed, downloads)


def _write_plan(placed: Sequence[Placed], downloads: Path) -> None:
    plan = [
        {
            "path": package.path,
            "file": f"{number}.tgz",
            "bin": _programs(package),
            "optional": package.optional,
        }
        for number, package in enumerate(placed)
    ]
    with translated("keep what was fetched"):
        (downloads / "plan.json").write_text(json.dumps(plan))
        settle(downloads)


def _programs(package: Placed) -> dict[str, str]:
    """Return the programs of top-level packages only: others are on no PATH."""
    return package.programs if len(package.location) == 1 else {}


class _Budget:
    """The number of bytes that all packages together may still take."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ProvisioningFailed(
                f"the npm packages take more than {self.most} bytes",
                hint="request less, or raise packages.max_bytes",
            )


class _Registry:
    """Every failure names the package."""

    def __init__(self, url: str, connections: Connections) -> None:
        self._url = address(url).rstrip("/")
        self._login = _authorization(url)
        self._connections = connections
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def look_up(self, names: Iterable[str]) -> dict[str, Json | None]:
        tasks = {name: asyncio.create_task(self._about(name)) for name in sorted(names)}
        await all_or_none(tasks.values())
        return {name: task.result() for name, task in tasks.items()}

    async def _about(self, name: str) -> Json | None:
        """Return the metadata of a package, in the short form if the registry has one."""
        data = await self._get(f"{self._url}/{quote(name, safe='@')}", name, _MOST_ABOUT)
        if data is None:
            return None
        try:
            packument = await asyncio.to_thread(json.loads, data)
        except (ValueError, RecursionError) as exc:
            raise _trouble(name, "the registry's answer is not JSON") from exc
        return packument if isinstance(packument, dict) else None

    async def tarball(self, package: Placed, path: Path, budget: _Budget) -> None:
        dist = package.manifest.get("dist")
        dist = dist if isinstance(dist, dict) else {}
        algorithm, wanted = _digest(dist)
        if not wanted:
            raise _trouble(package.name, "the registry has no valid digest for its file")
        digest = hashlib.new(algorithm, usedforsecurity=False)
        url = self._checked(package.name, str(dist.get("tarball", "")))
        async with self._answer(url, package.name, "*/*") as answer:
            if answer.status != 200:
                raise _trouble(package.name, f"the registry answered {answer.status} for its file")
            while piece := await answer.content.read(_CHUNK):
                budget.take(len(piece))
                digest.update(piece)
                await to_the_end(_append, path, piece)
        if digest.digest() != wanted:
            raise _trouble(
                package.name, f"its file does not match the digest of the registry ({algorithm})"
            )

    def _checked(self, name: str, url: str) -> str:
        """Return the address of a file, on the registry's own origin only: a manifest must not
        redirect us elsewhere. A mirror often passes manifests on unchanged and has the file
        under the same path.
        """
        try:
            split = urlsplit(url)
            if split.scheme in ("http", "https") and split.path.startswith("/"):
                return url if origin(url) == origin(self._url) else self._url + split.path
        except ValueError:
            pass
        raise _trouble(name, "its file has no valid address")

    async def _get(self, url: str, name: str, most: int) -> bytes | None:
        async with self._answer(url, name, _SHORT_FORM) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise _trouble(name, f"the registry answered {answer.status}")
            too_long = _trouble(name, f"its metadata has more than {most} bytes")
            return await read_whole(answer, most, too_long)

    @asynccontextmanager
    async def _answer(
        self, url: str, name: str, accept: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._slots:
            try:
                answer = await self._connections.open(
                    url, headers={"Accept": accept}, authorization=self._login
                )
            except (RegistryUnavailable, InvalidImage) as exc:
                raise _trouble(name, exc.message) from exc
            try:
                yield answer
            except BROKEN as exc:
                raise _trouble(name, "the connection broke") from exc
            finally:
                answer.close()


def _append(path: Path, piece: bytes) -> None:
    with translated("keep what was fetched"), path.open("ab") as file:
        file.write(piece)


def _authorization(url: str) -> str | None:
    """Return the header: `user:password@` means Basic, a lone `token@` means Bearer."""
    split = urlsplit(url)
    if split.username is None:
        return None
    user, password = unquote(split.username), split.password
    if password is None:
        return f"Bearer {user}"
    both = f"{user}:{unquote(password)}".encode()
    return "Basic " + base64.b64encode(both).decode()


def _digest(dist: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the strongest digest given; the oldest packages only have sha1."""
    digests = dict(
        item.split("-", 1) for item in str(dist.get("integrity", "")).split() if "-" in item
    )
    try:
        for algorithm in ("sha512", "sha384", "sha256", "sha1"):
            if algorithm in digests:
                return algorithm, base64.b64decode(digests[algorithm], validate=True)
        return "sha1", bytes.fromhex(str(dist.get("shasum", "")))
    except ValueError:
        return "", b""


def _trouble(name: str, why: str) -> ProvisioningFailed:
    return ProvisioningFailed(
        f"npm package {name[:214]} could not be fetched: {why}",
        hint="check that packages.npm_registry can be reached and has the package",
        package=name[:214],
    )
