"""Source distributions: fetched here, built into wheels in a sandbox without a network.

Building runs the package's own code, so nothing of it happens on this machine: pip prepares even a
download of a source distribution by running it, which is why only its finder is used here. What a
build requires is fetched as wheels from the same index, so the sandbox needs no network and never
sees the index's credentials. What a build names is untrusted and checked like a request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, ProvisioningFailed
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.package_sets import checked_packages, package_name
from sandkasten_build.packages.package_fetch import last_lines
from sandkasten_build.packages.package_output import receive, unpack
from sandkasten_build.packages.package_shelf import settle
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from sandkasten.ports import Site

    Fetch = Callable[[Sequence[str], Path, Path], Awaitable[str | None]]
    """Fetch wheels of packages into a directory, with those of another directory to choose from;
    return the package that has none."""
    FetchSource = Callable[[str, Path], Awaitable[None]]

# Each costs a few seconds; a set with more of them is better built as an image.
MOST_BUILDS: Final = 20
_MOST_ROUNDS: Final = 6
_DEEPEST: Final = 3
_PROBE_S: Final = 60.0
_MADE: Final = f"{WORKSPACE}/wheels"
_MISSING: Final = re.compile(r"No matching distribution found for (\S+)")
_SOURCE_NAME: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\.(?:tar\.gz|tgz|zip|tar\.bz2)\Z"
)
_WHEEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl\Z")

# The same defaults as pip's for a package without pyproject.toml.
REQUIRES: Final = """
import json, sys, tarfile, zipfile
sys.path.insert(0, sys.argv[1])
from pip._vendor import tomli
from pip._vendor.packaging.requirements import Requirement
path, found = sys.argv[2], None
if path.endswith(".zip"):
    with zipfile.ZipFile(path) as archive:
        for one in archive.namelist():
            if one.count("/") == 1 and one.endswith("/pyproject.toml"):
                with archive.open(one) as file:
                    found = file.read(1 << 20)
else:
    with tarfile.open(path) as archive:
        for one in archive:
            if one.isreg() and one.name.count("/") == 1 and one.name.endswith("/pyproject.toml"):
                found = archive.extractfile(one).read(1 << 20)
system = tomli.loads((found or b"").decode()).get("build-system", {})
wanted = []
for text in system.get("requires", ["setuptools>=40.8.0", "wheel"]):
    one = Requirement(text)
    if one.url:
        sys.exit("a build requirement is an address: " + text)
    if one.marker is None or one.marker.evaluate():
        extras = "[" + ",".join(sorted(one.extras)) + "]" if one.extras else ""
        wanted.append(one.name + extras + str(one.specifier))
print(json.dumps(wanted))
"""
BUILD: Final = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.umask(0o022)
os.makedirs(sys.argv[2] + "/tmp", exist_ok=True)
os.environ["TMPDIR"] = os.environ["HOME"] = sys.argv[2] + "/tmp"
from pip._internal.cli.main import main
sys.exit(main(sys.argv[3:]))
"""
# How pip begins on this machine. It ends with its parent (PR_SET_PDEATHSIG), even if that is
# killed, and the kernel bounds each file and its memory, whatever an index sends.
BOUNDED: Final = """
import ctypes, json, os, resource, sys
where, markers, most, parent = sys.argv[1:5]
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(parent):
    sys.exit("the parent process is gone")
if where:
    sys.path.insert(0, where)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
"""
FIND_SOURCE: Final = (
    BOUNDED
    + """
import hashlib
from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.commands.download import DownloadCommand
from pip._vendor.packaging.requirements import Requirement
command = DownloadCommand("download", "")
options, (spec,) = command.parse_args(sys.argv[6:])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(
        options=options, session=session, target_python=make_target_python(options)
    )
    wanted = Requirement(spec)
    best = finder.find_best_candidate(wanted.name, specifier=wanted.specifier).best_candidate
    if best is None:
        sys.exit("No matching distribution found for " + spec)
    link = best.link
    folders = [os.path.abspath(one) for one in options.find_links]
    if link.scheme == "file" and os.path.dirname(link.file_path) not in folders:
        sys.exit("the index names a file of this machine: " + link.filename)
    answer = session.get(link.url_without_fragment, stream=True,
                         headers={"Accept-Encoding": "identity"})
    answer.raise_for_status()
    digest = hashlib.new(link.hash_name) if link.hash_name else None
    with open(os.path.join(options.download_dir, os.path.basename(link.filename)), "xb") as file:
        while piece := answer.raw.read(262144):
            file.write(piece)
            if digest:
                digest.update(piece)
    if digest and digest.hexdigest() != link.hash:
        sys.exit("the file of " + spec + " is not what the index says (" + link.hash_name + ")")
"""
)


class SourceBuilds:
    """Builds what has no wheel. `given` is the directory of this machine that the site mounts at
    `target`, and `pip` the path of pip inside.
    """

    def __init__(
        self,
        site: Site,
        *,
        pip: str,
        downloads: Path,
        target: str,
        max_bytes: int,
        timeout_s: float,
        fetch: Fetch,
        fetch_source: FetchSource,
    ) -> None:
        self._site = site
        self._pip = pip
        self._given = downloads
        self._target = target
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._fetch = fetch
        self._fetch_source = fetch_source
        self._built = downloads / "built"
        self._needed = downloads / "needed"
        self._tried: set[str] = set()
        self._asked: set[str] = set()

    async def provide(self, specs: Sequence[str], into: Path, depth: int = 0) -> None:
        """Fetch wheels of the packages; build those that have none. Raise ProvisioningFailed."""
        for directory in (self._built, self._needed):
            await to_the_end(directory.mkdir, exist_ok=True)
        while specs:
            missing = await self._fetch(specs, into, self._built)
            if missing is None:
                return
            if missing in self._tried:
                raise _failed(missing, "the wheel that was built from its source does not fit", "")
            if depth >= _DEEPEST or len(self._tried) >= MOST_BUILDS:
                raise _failed(missing, "too many other packages had to be built first", "")
            self._tried.add(missing)
            await self._build(missing, depth)

    async def _build(self, spec: str, depth: int) -> None:
        (wanted,) = _checked([spec], spec)
        sources = self._given / f"source-{len(self._tried)}"
        await to_the_end(sources.mkdir)
        await self._fetch_source(wanted, sources)
        names = await to_the_end(os.listdir, sources)
        if len(names) != 1 or not _SOURCE_NAME.match(names[0]):
            raise _failed(spec, "its source is not an archive that pip can build", "")
        requires = await self._requires(spec, f"{sources.name}/{names[0]}")
        for _ in range(_MOST_ROUNDS):
            await self.provide(_checked(requires, spec), self._needed, depth + 1)
            missing = await self._wheel(spec, f"{sources.name}/{names[0]}")
            if missing is None:
                return
            # Some requirements become known only while the build runs.
            requires = [missing]
        raise _failed(spec, "its build requested new packages in every round", "")

    async def _requires(self, spec: str, source: str) -> list[str]:
        inside = await self._shown()
        command = ("python3", "-I", "-c", REQUIRES, self._pip, f"{inside}/{source}")
        result = await self._site.run(command, env={}, timeout_s=_PROBE_S)
        try:
            if result.exit_code == 0:
                needs = json.loads(result.stdout)
                if isinstance(needs, list) and all(isinstance(need, str) for need in needs):
                    return needs
        except (ValueError, RecursionError):
            pass
        raise _failed(spec, "its build requirements cannot be read", _tail(result.output))

    async def _wheel(self, spec: str, source: str) -> str | None:
        """Build one wheel, or return the package that its build lacks."""
        inside = await self._shown()
        result = await self._site.run(
            (
                "python3", "-I", "-c", BUILD, self._pip, WORKSPACE,
                "wheel", "--isolated", "--no-input", "--disable-pip-version-check",
                "--no-cache-dir", "--no-index", "--find-links", f"{inside}/{self._needed.name}",
                "--no-deps", "--progress-bar", "off", "--wheel-dir", _MADE,
                "--", f"{inside}/{source}",
            ),
            env={"PIP_CONFIG_FILE": os.devnull},
            timeout_s=self._timeout_s,
        )  # fmt: skip
        if result.exit_code != 0:
            missing = _MISSING.findall(result.output.decode(errors="replace"))
            if missing and missing[-1] not in self._asked:
                self._asked.add(missing[-1])
                return str(missing[-1])
            why = result.why.message if result.why is not None else "its build failed"
            raise _failed(spec, why, _tail(result.output))
        await self._bring(spec)
        return None

    async def _bring(self, spec: str) -> None:
        """Move the wheels out of the sandbox, to be chosen from like those of an index."""
        archive, tree = self._given / "built.tar", self._given / "unpacked"
        await to_the_end(tree.mkdir)
        try:
            await receive(self._site.tar(_MADE), archive, self._max_bytes, (spec,))
            await to_the_end(unpack, archive, tree, self._max_bytes)
            await to_the_end(_keep_wheel, tree, self._built, package_name("pip", spec))
        finally:
            await to_the_end(shutil.rmtree, tree)
            await to_the_end(archive.unlink, missing_ok=True)

    async def _shown(self) -> str:
        await to_the_end(settle, self._given)
        return await self._site.shown(self._target)


def _keep_wheel(tree: Path, built: Path, name: str) -> None:
    """Keep only wheels of this package: its build must not provide another one."""
    settle(tree)
    for entry in os.scandir(tree):
        own = package_name("pip", entry.name.partition("-")[0]) == name
        if own and _WHEEL_NAME.match(entry.name) and entry.is_file(follow_symlinks=False):
            os.replace(entry.path, built / entry.name)


def _checked(specs: Sequence[str], spec: str) -> tuple[str, ...]:
    try:
        return checked_packages(pip=list(specs)).pip
    except InvalidRequest as exc:
        raise _failed(spec, f"its build names {exc.message}", "") from exc


def _tail(output: bytes) -> str:
    return "\n".join(last_lines(output))


def _failed(spec: str, why: str, output: str) -> ProvisioningFailed:
    return ProvisioningFailed(
        f"{spec[:200]} has no wheel for this image, and {why}" + (f":\n{output}" if output else ""),
        hint="use a version that has a wheel, or an image that has what the build needs, such as "
        "compilers",
        package=spec[:200],
    )
