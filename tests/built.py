"""Images that docker builds from this checkout, each built once for what it is made of.

They are kept as archives below build/built-images, named by a digest of everything that goes into
them; a newer one takes the place of an older. `daemon`, `runtime` and `sidecar` see to it that an
engine has theirs. Builds have no network: what they need is fetched before, by pip and apt.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from tests import imagekit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.deploy.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "built-images"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BASE = "sandkasten-base:bookworm"
DAEMON = f"sandkasten:{VERSION}"
RUNTIMES = tuple(f"sandbox-runtime:{name}" for name in ("base", "python", "node"))
SIDECAR = "sandkasten-test-sidecar:latest"


def daemon(engine: Engine) -> str:
    """The daemon of this checkout, as `make image` builds it."""
    sources = [
        *_files("deploy/Dockerfile", "deploy/healthcheck.py", "scripts/image.sh"),
        *_files("pyproject.toml", "README.md", "LICENSE", "scripts/wheel_hook.py"),
        *_files("requirements/server.txt", "requirements/docker.txt", "requirements/image.txt"),
        *(path for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts),
    ]
    _ensure(engine, "daemon", sources, (DAEMON, "sandkasten:latest"), _build_daemon)
    return DAEMON


def _build_daemon(engine: Engine) -> None:
    _base(engine)
    engine.run(str(ROOT / "scripts" / "image.sh"), env={"BASE": BASE})


def runtime(engine: Engine) -> tuple[str, ...]:
    """What sandboxes are made from, as `make images` builds it."""
    sources = [*_files("scripts/images.sh", "scripts/debs.sh"), *(ROOT / "images").rglob("*")]
    _ensure(engine, "runtime", sources, RUNTIMES, _build_runtime)
    return RUNTIMES


def _build_runtime(engine: Engine) -> None:
    _base(engine)
    engine.run(str(ROOT / "scripts" / "images.sh"), env={"BASE": BASE, "OFFLINE": "1"})


def sidecar(engine: Engine) -> str:
    """A Docker Engine in a container, with mutual TLS."""
    folder = ROOT / "tests" / "deploy" / "sidecar"
    sources = [folder / "Dockerfile", folder / "entrypoint.sh", *_files("scripts/debs.sh")]
    _ensure(engine, "sidecar", sources, (SIDECAR,), _build_sidecar)
    return SIDECAR


def _build_sidecar(engine: Engine) -> None:
    _base(engine)
    context = CACHE / "sidecar"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(ROOT / "tests" / "deploy" / "sidecar", context)
    wanted = ("docker.io", "iptables", "openssl")
    engine.run(str(ROOT / "scripts" / "debs.sh"), BASE, str(context / "debs"), *wanted)
    tagged = ("--network", "none", "--build-arg", f"BASE={BASE}", "--tag", SIDECAR)
    engine.docker("build", "--quiet", *tagged, str(context))
    shutil.rmtree(context)


def _base(engine: Engine) -> None:
    if engine.docker("image", "inspect", BASE, check=False).returncode != 0:
        engine.docker("import", str(imagekit.debian_tar()), BASE)


def _files(*names: str) -> Iterable[Path]:
    return (ROOT / name for name in names)


def _ensure(
    engine: Engine,
    name: str,
    sources: Iterable[Path],
    tags: tuple[str, ...],
    build: Callable[[Engine], None],
) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"{name}-{_digest(sources)}.tar"
    with (CACHE / f".{name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if archive.exists():
            engine.docker("load", "--input", str(archive))
            return
        build(engine)
        for older in CACHE.glob(f"{name}-*.tar"):
            older.unlink()
        making = archive.with_suffix(".making")
        engine.docker("save", "--output", str(making), *tags)
        making.rename(archive)


def _digest(sources: Iterable[Path]) -> str:
    whole = hashlib.sha256(imagekit.debian_tar().stat().st_mtime_ns.to_bytes(8, "big"))
    for path in sorted(path for path in sources if path.is_file()):
        whole.update(f"{path.relative_to(ROOT)} {path.stat().st_mode:o}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]
