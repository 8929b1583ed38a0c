"""Certificates for an engine that is reached over a network: an authority, a server, a client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Below `folder`, under the names docker's own tools look for."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def cert(self) -> Path:
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"


def make(folder: Path, address: str) -> Certificates:
    """Good for a day, for that address alone. The server's are `server.pem`, `server-key.pem`."""
    folder.mkdir()
    made = Certificates(folder)
    authority = folder / "ca-key.pem"
    _new_key(authority)
    _openssl(
        *("req", "-x509", "-new", "-key", authority, "-out", made.ca, "-days", "1"),
        *("-subj", "/CN=engines of a test run"),
    )
    for name, key, cert, usage in (
        (address, folder / "server-key.pem", folder / "server.pem", "serverAuth"),
        ("client", made.key, made.cert, "clientAuth"),
    ):
        asked, extra = folder / f"{usage}.csr", folder / f"{usage}.ext"
        _new_key(key)
        _openssl("req", "-new", "-key", key, "-out", asked, "-subj", f"/CN={name}")
        named = f"subjectAltName=IP:{address}\n" if usage == "serverAuth" else ""
        extra.write_text(f"{named}extendedKeyUsage={usage}\n")
        _openssl(
            *("x509", "-req", "-in", asked, "-CA", made.ca, "-CAkey", authority),
            *("-CAcreateserial", "-days", "1", "-extfile", extra, "-out", cert),
        )
    return made


def _new_key(path: Path) -> None:
    _openssl(
        "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path
    )


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)
