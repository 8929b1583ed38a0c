"""Python packages: wheels fetched by this machine's pip, installed by the image's python.

Fetching runs no code of a package: pip only gets wheels, and a package without one is built inside
(`pip_sources`). It gets the version, platform and markers of the image's own python, which is
queried inside. Installing happens in a sandbox without a network, only from the fetched files,
with a copy of our pip, so an image needs none. ProvisioningFailed names the package if pip does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import CommandNotFound, ProvisioningFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_build.builder.build_cache import build_key
from sandkasten_build.child_program import child_environment
from sandkasten_build.packages.package_fetch import fetch, last_lines
from sandkasten_build.packages.package_shelf import settle
from sandkasten_build.packages.pip_sources import BOUNDED, FIND_SOURCE, SourceBuilds
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.ports import Site
    from sandkasten_build.packages.package_fetch import Fetched
    from sandkasten_build.packages.package_rules import PackageRules
    from sandkasten_build.packages.package_shelf import Shelf

GIVEN: Final = "/opt/sandkasten/given"
TOOL: Final = "/opt/sandkasten/tool"
MADE: Final = f"{WORKSPACE}/made"
_WHEEL: Final = "pip.whl"
_PROBE_S: Final = 60.0
_PIP_PLACES: Final = ("/usr/share/python-wheels",)
_TAG: Final = re.compile(r"[a-z0-9_.]{1,80}\Z")
_VERSION: Final = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\Z")
_WITHOUT_WHEEL: Final = re.compile(r"No matching distribution found for ([^\s;]+)")
_NAMED: Final = re.compile(
    r"(?:No matching distribution found for|satisfies the requirement|Cannot install) (\S+)"
)
# Options that select an index, and nothing that changes what is done with the answer.
_TRANSPORT: Final = (
    "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
_OPERATORS_OWN: Final = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE",
    "HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "NETRC",
)  # fmt: skip

_LOOK: Final = """
import json, platform, sys
sys.path.insert(0, sys.argv[1])
from pip._vendor.packaging import markers, tags
found = list(tags.sys_tags())
print(json.dumps({
    "version": ".".join(platform.python_version_tuple()[:2] + (str(sys.version_info[2]),)),
    "implementation": found[0].interpreter[:2],
    "abi": found[0].abi,
    "platforms": list(dict.fromkeys(tag.platform for tag in found if tag.platform != "any")),
    "markers": markers.default_environment(),
}))
"""
# pip asks this machine's python for markers even when it fetches for another (pypa/pip#11664).
# `--only-binary` does not apply to a dependency that names an address: pip would fetch a source
# from there and run its build on this machine.
_FETCH: Final = (
    BOUNDED
    + """
from pip._vendor.packaging import markers as marker_module
marker_module.default_environment
marker_module.default_environment = lambda: json.loads(markers)
from pip._internal.distributions.sdist import SourceDistribution
from pip._internal.exceptions import InstallationError
from pip._internal.req.req_install import InstallRequirement
SourceDistribution.prepare_distribution_metadata
def refused(self, *args, **options):
    raise InstallationError(f"{self.req} is a source, which is not built on this machine")
SourceDistribution.prepare_distribution_metadata = refused
create = InstallRequirement.__init__
def checked(self, *args, **options):
    create(self, *args, **options)
    if self.editable or getattr(self.req, "url", None):
        raise InstallationError(f"{self.req} is an address, and packages are fetched by name")
InstallRequirement.__init__ = checked
from pip._internal.cli.main import main
sys.exit(main(sys.argv[5:]))
"""
)
_INSTALL: Final = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.umask(0o022)
os.makedirs(sys.argv[2] + "/tmp", exist_ok=True)
os.environ["TMPDIR"] = sys.argv[2] + "/tmp"
from pip._internal.cli.main import main
sys.exit(main(sys.argv[3:]))
"""


@dataclass(frozen=True, slots=True)
class _Python:
    """The image's python, as it reports itself; every string was checked."""

    version: str
    implementation: str
    abi: str
    platforms: tuple[str, ...]
    markers: Mapping[str, str]


def tool(shelf: Shelf) -> Path:
    """Return a copy of our pip that sandboxes can mount. Blocking. Raise ProvisioningFailed."""
    pip = _our_pip()
    is_wheel = not pip.is_dir()

    def copy(to: Path) -> None:
        to.mkdir()
        if is_wheel:
            shutil.copyfile(pip, to / _WHEEL)
        else:
            # Including compiled files, which an image of the same version can use.
            shutil.copytree(pip, to / "pip")

    changed = (pip if is_wheel else pip / "__init__.py").stat()
    key = build_key(path=os.fspath(pip), size=changed.st_size, mtime=changed.st_mtime_ns)
    return shelf.tool(f"pip-{key[:16]}", copy)


async def install(
    specs: Sequence[str],
    site: Site,
    downloads: Path,
    rules: PackageRules,
    environ: Mapping[str, str],
    timeout_s: float,
) -> str:
    """Install the packages; return the sandbox directory that contains them."""
    tool = await site.shown(TOOL)
    inside = f"{tool}/{_WHEEL}" if _our_pip().is_file() else tool
    python = await _look(site, inside)
    fetching = _Fetching(python, rules, environ, timeout_s)
    builds = SourceBuilds(
        site,
        pip=inside,
        downloads=downloads,
        target=GIVEN,
        max_bytes=rules.max_bytes,
        timeout_s=timeout_s,
        fetch=fetching.wheels,
        fetch_source=fetching.source,
    )
    await builds.provide(specs, downloads)
    names = await to_the_end(_readable, downloads)
    wheels = await site.shown(GIVEN)
    command = (
        "python3", "-I", "-c", _INSTALL, inside, WORKSPACE,
        "install", "--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
        "--no-index", "--no-deps", "--no-warn-script-location", "--progress-bar", "off", "--quiet",
        "--target", MADE, "--", *(f"{wheels}/{name}" for name in names),
    )  # fmt: skip
    result = await site.run(command, env={"PIP_CONFIG_FILE": os.devnull}, timeout_s=timeout_s)
    if result.exit_code != 0:
        raise failed_inside("pip could not install the packages", specs, result)
    return MADE


async def _look(site: Site, inside: str) -> _Python:
    try:
        command = ("python3", "-I", "-c", _LOOK, inside)
        result = await site.run(command, env={}, timeout_s=_PROBE_S)
    except CommandNotFound as exc:
        raise ProvisioningFailed(
            "the image has no python3, which Python packages require",
            hint="use an image that has python3, such as python",
        ) from exc
    if result.exit_code != 0:
        raise failed_inside("the version of the image's python3 could not be read", (), result)
    try:
        return _told(json.loads(result.stdout))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ProvisioningFailed(
            "python3 of the image reported an invalid version or platform",
            hint="use another image",
        ) from exc


def _told(document: Any) -> _Python:
    """Check what an image reports: it becomes arguments, so each string must be plain."""
    python = _Python(
        version=_plain(_VERSION, document["version"]),
        implementation=_plain(_TAG, document["implementation"]),
        abi=_plain(_TAG, document["abi"]),
        platforms=tuple(_plain(_TAG, tag) for tag in document["platforms"]),
        markers={
            _plain(_TAG, name): str(value)[:200] for name, value in document["markers"].items()
        },
    )
    if not 1 <= len(python.platforms) <= 200 or len(python.markers) > 40:
        raise ValueError("too many or too few")
    return python


def _plain(form: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or not form.match(text):
        raise ValueError("not a plain text")
    return text


class _Fetching:
    """Runs pip on this machine, for the image's python. It never gets to run a package's code."""

    def __init__(
        self, python: _Python, rules: PackageRules, environ: Mapping[str, str], timeout_s: float
    ) -> None:
        self._python = python
        self._rules = rules
        self._environ = environ
        self._timeout_s = timeout_s
        self._without_wheel: ProvisioningFailed | None = None

    async def wheels(self, specs: Sequence[str], into: Path, built: Path) -> str | None:
        """Fetch wheels; return the package that has none, if such are built here."""
        options = ("--only-binary=:all:", "--find-links", os.fspath(built))
        fetched = await self._run(_FETCH, specs, into, options)
        if fetched.status == 0:
            return None
        failure = self._failed(specs, fetched)
        match = _WITHOUT_WHEEL.search("\n".join(fetched.tail)) if self._rules.build else None
        if match is None:
            raise failure
        self._without_wheel = failure
        return match[1]

    async def source(self, spec: str, into: Path) -> None:
        """Fetch the source distribution of a package, without preparing it."""
        fetched = await self._run(FIND_SOURCE, (spec,), into, ("--no-binary=:all:",))
        if fetched.status != 0:
            failure = self._failed((spec,), fetched)
            if self._without_wheel is not None and _WITHOUT_WHEEL.search(failure.message):
                # It has no source either; pip printed more about it before.
                failure = self._without_wheel
            raise failure

    async def _run(
        self, script: str, specs: Sequence[str], into: Path, options: Sequence[str]
    ) -> Fetched:
        pip, python, rules = _our_pip(), self._python, self._rules
        return await fetch(
            (
                sys.executable, "-I", "-c", script,
                "" if pip.is_dir() else os.fspath(pip),
                json.dumps(python.markers), str(rules.max_bytes), str(os.getpid()),
                "download", *options, "--no-input", "--disable-pip-version-check",
                "--no-cache-dir", "--progress-bar", "off", "--dest", os.fspath(into),
                "--python-version", python.version, "--implementation", python.implementation,
                "--abi", python.abi,
                *(word for platform in python.platforms for word in ("--platform", platform)),
                "--", *specs,
            ),
            env=_environment(rules, self._environ, os.fspath(into)),
            into=into,
            max_bytes=rules.max_bytes,
            timeout_s=self._timeout_s,
            what=f"fetching {', '.join(specs)} with pip",
        )  # fmt: skip

    def _failed(self, specs: Sequence[str], fetched: Fetched) -> ProvisioningFailed:
        output = "\n".join(fetched.tail)
        culprit = next((match[1] for line in fetched.tail if (match := _NAMED.search(line))), None)
        reason = (
            "" if self._rules.build else "; source distributions are not built (packages.build)"
        )
        return ProvisioningFailed(
            f"pip could not fetch {culprit or ', '.join(specs)}:\n{output}",
            hint="check the name and the version, for the image's python "
            f"({self._python.version} on {self._python.platforms[0]}){reason}",
            package=culprit,
            packages=list(specs),
        )


def _environment(rules: PackageRules, environ: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return pip's environment. Addresses go this way, not as arguments, which every user can
    list.
    """
    names = list(_TRANSPORT)
    more = {"TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
    if rules.index_url is None and rules.find_links is None:
        names += _OPERATORS_OWN
    else:
        more |= {"PIP_CONFIG_FILE": os.devnull, "HOME": scratch}
        if rules.find_links is not None:
            more["PIP_FIND_LINKS"] = rules.find_links
        if rules.index_url is not None:
            more["PIP_INDEX_URL"] = rules.index_url
        else:
            more["PIP_NO_INDEX"] = "1"
    variables = {name: environ[name] for name in names if environ.get(name)}
    return child_environment(environ, **variables, **more)


def _readable(wheels: Path) -> list[str]:
    settle(wheels)
    return sorted(entry.name for entry in os.scandir(wheels) if entry.name.endswith(".whl"))


def _our_pip() -> Path:
    """Return our own pip package; else the wheel that comes with this machine's python."""
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    bundled = importlib.util.find_spec("ensurepip")
    places = [Path(path) for path in _PIP_PLACES]
    if bundled is not None and bundled.origin is not None:
        places.insert(0, Path(bundled.origin).parent / "_bundled")
    for place in places:
        wheels = sorted(place.glob("pip-*.whl"))
        if wheels:
            return wheels[-1]
    raise ProvisioningFailed(
        "pip is not installed, which fetches Python packages",
        hint=f"install it: {sys.executable} -m ensurepip, or apt-get install python3-pip",
    )


def failed_inside(what: str, specs: Sequence[str], result: ExecResult) -> ProvisioningFailed:
    output = "\n".join(last_lines(result.output))
    ended = result.why.message if result.why is not None else f"status {result.exit_code}"
    named = f" ({', '.join(specs)})" if specs else ""
    return ProvisioningFailed(
        f"{what}{named}, {ended}:\n{output}",
        hint=(result.why.hint if result.why is not None else "")
        or "read the end of the output above",
        packages=list(specs),
    )
