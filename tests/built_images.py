"""Images that docker builds from this checkout, each built once per content.

They are kept as archives below build/built-images, named by a digest of everything they contain; a
newer one replaces an older one. `daemon`, `runtime` and `sidecar` load theirs into an engine.
Builds have no network: pip and apt fetch what they need before.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests import imagekit
from tests.engines.engine import missing
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.deploy.engine import Docker

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "built-images"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BASE = "sandkasten-base:bookworm"
DAEMON = f"sandkasten:{VERSION}"
RUNTIMES = tuple(f"sandbox-runtime:{name}" for name in ("base", "python", "node"))
SIDECAR = "sandkasten-test-sidecar:latest"
# The first build of all three fetches and unpacks for a minute or two.
PATIENCE_S = 900


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    sources: tuple[str, ...]
    """Files and directories of the repository."""
    tags: tuple[str, ...]
    build: Callable[[Docker], None]

    @property
    def archive(self) -> Path:
        whole = hashlib.sha256(str(imagekit.debian_tar().stat().st_mtime_ns).encode())
        for path in sorted(self._files()):
            whole.update(f"{path.relative_to(ROOT)} {path.stat().st_mode:o}\0".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        return CACHE / f"{self.name}-{whole.hexdigest()[:16]}.tar"

    def _files(self) -> Iterator[Path]:
        for source in self.sources:
            path = ROOT / source
            for one in (path, *path.rglob("*")):
                if one.is_file() and "__pycache__" not in one.parts:
                    yield one

    def ensure(self, engine: Docker) -> None:
        """In the engine, and as an archive for the next."""
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f".{self.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            archive = self.archive
            if archive.exists():
                engine.docker("load", "--input", str(archive))
                return
            self.build(engine)
            for older in CACHE.glob(f"{self.name}-*.tar"):
                older.unlink()
            making = CACHE / f".{self.name}.making"
            engine.docker("save", "--output", str(making), *self.tags)
            making.rename(archive)


def daemon(engine: Docker) -> str:
    """The daemon of this checkout, as `make image` builds it."""
    _DAEMON.ensure(engine)
    return DAEMON


def runtime(engine: Docker) -> tuple[str, ...]:
    """What sandboxes are made from, as `make images` builds it."""
    _RUNTIME.ensure(engine)
    return RUNTIMES


def sidecar(engine: Docker) -> str:
    """A Docker Engine in a container, with mutual TLS."""
    _SIDECAR.ensure(engine)
    return SIDECAR


def archives() -> Path:
    """All of them built, in an engine that is started only when one is missing."""
    from tests.deploy.engine import started

    recipes = (_DAEMON, _RUNTIME, _SIDECAR) if LONG else (_DAEMON,)
    lacking = [one for one in recipes if not one.archive.exists()]
    if lacking and not missing():
        with started() as engine:
            for one in lacking:
                one.ensure(engine)
    return CACHE


def daemon_archive() -> Path:
    """Return the archive of the daemon's image, built if it is missing."""
    from tests.deploy.engine import started

    if not _DAEMON.archive.exists():
        with started() as engine:
            _DAEMON.ensure(engine)
    return _DAEMON.archive


def base(engine: Docker) -> None:
    """Put the Debian that images are built from into the engine."""
    if engine.docker("image", "inspect", BASE, check=False).returncode != 0:
        engine.docker("import", str(imagekit.debian_tar()), BASE)


def _build_daemon(engine: Docker) -> None:
    base(engine)
    script = str(ROOT / "scripts" / "image.sh")
    engine.run(script, env={"BASE": BASE}, timeout_s=PATIENCE_S)


def _build_runtime(engine: Docker) -> None:
    base(engine)
    script = str(ROOT / "scripts" / "images.sh")
    engine.run(script, env={"BASE": BASE, "OFFLINE": "1"}, timeout_s=PATIENCE_S)


def _build_sidecar(engine: Docker) -> None:
    base(engine)
    context = CACHE / "sidecar"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(ROOT / "tests" / "deploy" / "sidecar", context)
    fetch = (str(ROOT / "scripts" / "image_debs.sh"), BASE, str(context / "debs"))
    engine.run(*fetch, "docker.io", "iptables", "openssl", timeout_s=PATIENCE_S)
    tagged = ("--network", "none", "--build-arg", f"BASE={BASE}", "--tag", SIDECAR)
    engine.docker("build", "--quiet", *tagged, str(context), timeout_s=PATIENCE_S)
    shutil.rmtree(context)


_DAEMON = Recipe(
    "daemon",
    (
        "deploy/Dockerfile", "deploy/healthcheck.py", "scripts/image.sh", "scripts/wheel_hook.py",
        "scripts/distributions.py", "pyproject.toml", "src", "client", "server", "plugins",
        "requirements/server.txt",
        "requirements/docker.txt", "requirements/agents.txt", "requirements/mcp.txt",
        "requirements/jwt.txt", "requirements/signatures.txt", "requirements/otel.txt",
        "requirements/postgres.txt", "requirements/image.txt",
    ),
    (DAEMON, "sandkasten:latest"),
    _build_daemon,
)  # fmt: skip
_RUNTIME = Recipe(
    "runtime", ("images", "scripts/images.sh", "scripts/image_debs.sh"), RUNTIMES, _build_runtime
)
_SIDECAR = Recipe(
    "sidecar", ("tests/deploy/sidecar", "scripts/image_debs.sh"), (SIDECAR,), _build_sidecar
)
