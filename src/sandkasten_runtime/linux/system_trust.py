"""Let programs that read only the system's certificates trust the authority of a sandbox.

wget, apt and other programs know no variable for certificates. For them, an inspected sandbox sees
its authority in the files of its system: in the bundles and the hashed directory, where the image
has them. An image gets one more layer above its own, and stays as it is. The host image gets mounts
on its bundles. Blocking.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.model.sandbox.cell_spec import HostMount
from sandkasten.model.sandbox.inspection import BUNDLE
from sandkasten_runtime.linux.storage.layer_view import LayerView
from sandkasten_runtime.linux.trust_files import AUTHORITY_NAME, TRUST, authority_pem

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_runtime.linux.trust_files import Authority

_LAYER: Final = "tls-layer"
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# OpenSSL looks for a certificate under the hash of its subject.
_HASHED: Final = ("/etc/ssl/certs", "/etc/pki/tls/certs")
# What the system's own programs write into the bundles, if code inside runs them.
_ANCHORS: Final = (
    ("/usr/local/share/ca-certificates", "sandkasten.crt"),
    ("/etc/pki/ca-trust/source/anchors", "sandkasten.pem"),
)
_MAX_BUNDLE: Final = 4 << 20


def trusting_image(cell: Path, spec: CellSpec, authority: Authority) -> CellSpec:
    """Return the spec with a layer above those of its image."""
    if spec.image.kind != "layers":
        return spec
    layer = cell / _LAYER
    _make(layer)
    _write(layer, _files(LayerView(spec.image.layers), authority))
    layers = (*spec.image.layers, os.fspath(layer))
    return replace(spec, image=replace(spec.image, layers=layers))


def trusting_host(cell: Path, spec: CellSpec, etc: Path) -> CellSpec:
    """Return the spec of a sandbox of the host image with mounts on the bundles of its `/etc`.

    Its root is read-only, so nothing inside could want to replace them. The hashed directory has a
    link to the authority already.
    """
    bundle = os.fspath(cell / TRUST / BUNDLE)
    there = [path for path in _BUNDLES if os.path.isfile(etc / path.removeprefix("/etc/"))]
    mounts = tuple(HostMount(bundle, path) for path in there)
    return replace(spec, mounts=(*spec.mounts, *mounts))


def hashed_name() -> str:
    """Return the name under which OpenSSL looks for the authority of a sandbox."""
    return f"{subject_hash(AUTHORITY_NAME)}.0"


def _files(view: LayerView, authority: Authority) -> dict[str, bytes]:
    """Return what the files of the system are to contain, by their paths without symlinks."""
    certificate = authority_pem(authority).encode()
    files: dict[str, bytes] = {}
    for bundle in _BUNDLES:
        path = view.resolve(bundle)
        content = None if path is None else view.read(path, _MAX_BUNDLE)
        if path is not None and content is not None:
            files[path] = content.rstrip(b"\n") + b"\n" + certificate
    names = [(folder, hashed_name()) for folder in _HASHED]
    for directory, name in (*names, *_ANCHORS):
        path = view.resolve(directory)
        if path is not None and view.is_directory(path) and not view.is_directory(f"{path}/{name}"):
            files[f"{path}/{name}"] = certificate
    return files


def subject_hash(common_name: str) -> str:
    """Return OpenSSL's hash of a subject that has only this common name.

    It hashes the names in lower case, with single spaces, as UTF8String.
    """
    value = " ".join(common_name.lower().split()).encode()
    oid = bytes.fromhex("0603550403")
    pair = oid + b"\x0c" + bytes([len(value)]) + value
    inner = b"\x30" + bytes([len(pair)]) + pair
    encoded = b"\x31" + bytes([len(inner)]) + inner
    digest = hashlib.sha1(encoded, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _write(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        at = root
        *parents, name = path.strip("/").split("/")
        for parent in parents:
            at /= parent
            if not at.is_dir():
                _make(at)
        (at / name).write_bytes(content)
        (at / name).chmod(0o644)


def _make(directory: Path) -> None:
    directory.mkdir()
    # Whatever the umask is: code inside must be able to read it.
    directory.chmod(0o755)
