"""Real servers for real programs: package repositories and a git repository, sshd, PostgreSQL.

All of them listen on this machine's loopback and are reached by names of `HOSTS`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.loopback_port import free_port
from tests.network.conftest import served
from tests.packages.wheels import wheel
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOSTS = ("deb.test", "git.test", "pypi.test", "npm.test", "ssh.test", "db.test")
_SECURE = ("git.test", "pypi.test", "npm.test")
_POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
PSQL = "psql" if _POSTGRES is None else str(_POSTGRES / "psql")


@dataclass(frozen=True)
class Servers:
    plain: int
    """The port of the files, without TLS."""
    secure: int
    ssh: int
    postgres: int
    certificate: str
    key: str
    """The private key that sshd accepts."""


def _run(*words: str | Path, **options: Any) -> None:
    subprocess.run(
        list(map(str, words)), check=True, capture_output=True, timeout=PATIENCE_S, **options
    )


def _certificate(folder: Path) -> tuple[Path, Path]:
    key, found = folder / "key.pem", folder / "certificate.pem"
    names = ",".join(f"DNS:{name}" for name in _SECURE)
    _run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "1", "-subj", "/CN=a test", "-addext", f"subjectAltName={names}"),
        *("-keyout", key, "-out", found),
    )
    return key, found


def make_files(root: Path, scratch: Path) -> None:
    _debian(root / "deb", scratch / "deb")
    _git(root / "repository.git", scratch / "git")
    (root / "simple" / "tiny").mkdir(parents=True)
    made = wheel(root / "simple" / "tiny", "tiny")
    (root / "simple" / "tiny" / "index.html").write_text(f'<a href="{made.name}">{made.name}</a>')


def _debian(root: Path, scratch: Path) -> None:
    root.mkdir(parents=True)
    (scratch / "DEBIAN").mkdir(parents=True)
    (scratch / "usr/share/tiny").mkdir(parents=True)
    (scratch / "usr/share/tiny/text").write_text("tiny\n")
    (scratch / "DEBIAN/control").write_text(
        "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: A Test <test@test>\n"
        "Description: one file\n"
    )
    _run("dpkg-deb", "--root-owner-group", "--build", scratch, root / "tiny_1.0_all.deb")
    with (root / "Packages").open("w") as index:
        subprocess.run(["apt-ftparchive", "packages", "."], cwd=root, stdout=index, check=True)


def _git(bare: Path, work: Path) -> None:
    """Make a repository that can be cloned as files."""
    _run("git", "init", "--quiet", work)
    (work / "text").write_text("tiny\n")
    who = ("-c", "user.name=A Test", "-c", "user.email=test@test")
    _run("git", "-C", work, "add", "text")
    _run("git", "-C", work, *who, "commit", "--quiet", "--message", "one")
    _run("git", "clone", "--quiet", "--bare", work, bare)
    _run("git", "-C", bare, "update-server-info")


def make_npm_package(root: Path, registry: str) -> None:
    """Make a package; its description names the address of its archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in (
            ("package/package.json", json.dumps({"name": "tiny", "version": "1.0.0"})),
            ("package/index.js", "module.exports = 'tiny'\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    (root / "tiny-1.0.0.tgz").write_bytes(made.getvalue())
    digest = base64.b64encode(hashlib.sha512(made.getvalue()).digest()).decode()
    dist = {
        "tarball": f"{registry}/tiny-1.0.0.tgz",
        "integrity": f"sha512-{digest}",
    }
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    told = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (root / "tiny").write_text(json.dumps(told))


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


def _file_server(root: Path) -> http.server.ThreadingHTTPServer:
    handler = functools.partial(_Files, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    return server


@contextmanager
def _running(words: Sequence[str], port: int, log: Path, **options: Any) -> Iterator[int]:
    with log.open("wb") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, **options)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                told = log.read_text()[-2000:]
                assert process.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _sshd(folder: Path) -> Iterator[int]:
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    public = (folder / "user.pub").read_text()
    (folder / "authorized").write_text(f'restrict,command="echo tiny" {public}')
    port = free_port()
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin forced-commands-only\n"
    )
    # sshd requires /run/sshd, which this machine need not have.
    server = f"/usr/sbin/sshd -D -e -f {folder}/config"
    private = f"mount -t tmpfs x /run && mkdir /run/sshd && exec {server}"
    words = ["unshare", "--mount", "sh", "-c", private]
    with _running(words, port, folder / "log") as found:
        yield found


@contextmanager
def _postgres(folder: Path) -> Iterator[int]:
    """Start a server as an ordinary user; it refuses to run as root."""
    assert _POSTGRES is not None, "postgresql is not installed"
    port, user = free_port(), 65534
    place = folder / "postgres"
    place.mkdir(mode=0o700)
    os.chown(place, user, user)
    who: dict[str, Any] = {"user": user, "group": user, "extra_groups": [], "cwd": place}
    who["env"] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
    options = ("--no-sync", "--auth=trust", "--username=tiny", "--no-instructions")
    _run(_POSTGRES / "initdb", *options, "-D", place / "data", **who)
    words = [str(_POSTGRES / "postgres"), "-D", str(place / "data"), "-p", str(port)]
    words += ["-h", "127.0.0.1", "-k", "", "-F", "-c", "dynamic_shared_memory_type=mmap"]
    with _running(words, port, folder / "log", **who) as found:
        yield found


@contextmanager
def servers() -> Iterator[Servers]:
    """Start all of them."""
    # Not below a directory of root's alone: PostgreSQL runs as another user.
    scratch = Path(tempfile.mkdtemp(prefix="sknet-", dir="/var/tmp"))
    scratch.chmod(0o711)
    root = scratch / "files"
    try:
        root.mkdir()
        make_files(root, scratch)
        key, certificate = _certificate(scratch)
        secure = _file_server(root)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # The handshake is made by the thread of the connection.
        secure.socket = context.wrap_socket(
            secure.socket, server_side=True, do_handshake_on_connect=False
        )
        make_npm_package(root, f"https://npm.test:{secure.server_port}")
        with (
            served(_file_server(root)) as plain_port,
            served(secure) as secure_port,
            _sshd(scratch / "ssh") as ssh_port,
            _postgres(scratch) as postgres_port,
        ):
            yield Servers(
                plain=plain_port,
                secure=secure_port,
                ssh=ssh_port,
                postgres=postgres_port,
                certificate=certificate.read_text(),
                key=(scratch / "ssh" / "user").read_text(),
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
