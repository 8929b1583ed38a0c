"""Small wheels, an index and a registry made in a test, without a network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str | bytes] | None = None,
    needs: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """`files` are added to a module of that name that contains its version."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    content: dict[str, str | bytes] = {f"{plain}.py": f"VERSION = {version!r}\n", **(files or {})}
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in needs)
    content[f"{info}/METADATA"] = metadata
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    )
    if scripts:
        lines = "".join(f"{one} = {to}\n" for one, to in scripts.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in content) + f"{info}/RECORD,,\n"
    path = folder / f"{plain}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    return path


def sdist(folder: Path, name: str, version: str, setup: str = "", **files: str) -> Path:
    """`files` are added by their names, with `_` for the dot of the suffix."""
    path = folder / f"{name}-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for member, text in (
            ("setup.py", setup),
            ("PKG-INFO", f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n"),
            *((one.replace("_", "."), text) for one, text in files.items()),
        ):
            info = tarfile.TarInfo(f"{name}-{version}/{member}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@dataclass
class Server:
    url: str
    asked: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    """By path; served before anything else."""
    stall: threading.Event | None = None
    """Every answer waits for this."""
    began: threading.Event = field(default_factory=threading.Event)

    def package(
        self,
        name: str,
        version: str = "1.0.0",
        *,
        files: Mapping[str, str | bytes] | None = None,
        tarball: bytes | None = None,
        dist: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        **manifest: object,
    ) -> None:
        """Add a version of an npm package; the last one is `latest`."""
        known = json.loads(self.answers.get(f"/{name}", b"{}"))
        about = {"name": name, "version": version, "main": "index.js", **manifest}
        data = tarball or npm_tarball({"package.json": json.dumps(about), **(files or {})})
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        self.answers[path] = data
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        about["dist"] = {
            "tarball": self.url + path,
            "integrity": f"sha512-{digest}",
            **(dist or {}),
        }
        versions = {**known.get("versions", {}), version: about}
        found = {"name": name, "dist-tags": {"latest": version, **(tags or {})}}
        self.answers[f"/{name}"] = json.dumps({**found, "versions": versions}).encode()


def npm_tarball(files: Mapping[str, str | bytes], *, raw: bool = False) -> bytes:
    """`raw`: the names are used unchanged, without the usual top directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name if raw else f"package/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue())


@contextmanager
def serving(folder: Path | None = None) -> Iterator[Server]:
    """Serve an index (PEP 503) of the wheels in a folder, or the given `answers`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            server.asked.append(path)
            server.authorizations.append(self.headers.get("Authorization"))
            server.began.set()
            if server.stall is not None:
                server.stall.wait(600)
            data = server.answers.get(path)
            if data is None and folder is not None:
                data = _index(folder, path)
            kind = "text/html" if path.startswith("/simple") else "application/octet-stream"
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if server.stall is not None:
            server.stall.set()
        http.shutdown()
        http.server_close()
        thread.join()


def _index(folder: Path, path: str) -> bytes | None:
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["files"] and len(parts) == 2:
        return (folder / parts[1]).read_bytes()
    if parts[:1] == ["simple"] and len(parts) == 2:
        names = [
            one.name
            for one in sorted(folder.iterdir())
            if one.name.split("-")[0].replace("_", "-").lower() == parts[1]
        ]
        if names:
            return "".join(f'<a href="/files/{one}">{one}</a>\n' for one in names).encode()
    return None
