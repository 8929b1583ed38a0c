"""Certificates for an engine behind a network: an authority, a server, a client."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


def make(folder: Path, address: str) -> None:
    """Good for a day, for that address alone. A client's are ca.pem, cert.pem and key.pem there.

    The server's are server.pem and server-key.pem.
    """
    folder.mkdir()
    authority, trusted = folder / "ca-key.pem", folder / "ca.pem"
    _new_key(authority)
    _openssl(
        *("req", "-x509", "-new", "-key", authority, "-out", trusted, "-days", "1"),
        *("-subj", "/CN=engines of a test run"),
    )
    for name, key, cert, usage in (
        (address, folder / "server-key.pem", folder / "server.pem", "serverAuth"),
        ("client", folder / "key.pem", folder / "cert.pem", "clientAuth"),
    ):
        asked, extra = folder / f"{usage}.csr", folder / f"{usage}.ext"
        _new_key(key)
        _openssl("req", "-new", "-key", key, "-out", asked, "-subj", f"/CN={name}")
        named = f"subjectAltName=IP:{address}\n" if usage == "serverAuth" else ""
        extra.write_text(f"{named}extendedKeyUsage={usage}\n")
        _openssl(
            *("x509", "-req", "-in", asked, "-CA", trusted, "-CAkey", authority),
            *("-CAcreateserial", "-days", "1", "-extfile", extra, "-out", cert),
        )


def _new_key(path: Path) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _openssl(*words: str | Path) -> None:
    subprocess.run(
        ["openssl", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE_S
    )
