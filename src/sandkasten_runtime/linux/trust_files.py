"""The certificate authority of one sandbox, and the files by which programs inside trust it.

Its key goes to the egress process over the control socket and is never on disk. Blocking.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import struct
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
from sandkasten.model.sandbox.inspection import (
    AUTHORITY,
    BUNDLE,
    TRUST_DIR,
    TRUST_STORE,
    TRUST_STORE_PASSWORD,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.sandbox.network_policy import NetworkCeiling

TRUST: Final = "tls"
AUTHORITY_NAME: Final = "Sandkasten authority"
"""The same for all sandboxes, so that its place in a hashed directory is known beforehand. Servers'
certificates must have another: a certificate with the subject of its issuer looks self-signed."""
_VALID: Final = datetime.timedelta(days=3650)
# Where systems keep the certificates of public authorities.
_SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_MAX_BUNDLE: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: bytes
    """DER."""
    key: bytes = field(repr=False)
    """PKCS#8."""
    roots: str
    """PEM: what the certificates of servers are checked against."""

    def files(self) -> dict[str, bytes]:
        """Return the files for the inside of the sandbox, by name. They contain no key."""
        certificate = authority_pem(self)
        return {
            AUTHORITY: certificate.encode(),
            BUNDLE: (self.roots + certificate).encode(),
            TRUST_STORE: java_trust_store([self.certificate, *_certificates(self.roots)]),
        }


def prepare_trust(cell: Path, sandbox: str, spec: CellSpec) -> tuple[CellSpec, Authority | None]:
    """Make the authority and its files. Return the spec that shows them inside."""
    if spec.inspection is None:
        return spec, None
    authority = make_authority(sandbox, trusted_roots(spec.ceiling))
    directory = cell / TRUST
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    for name, content in authority.files().items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o644)
    shown = HostMount(os.fspath(directory), TRUST_DIR)
    return replace(with_variables(spec), mounts=(*spec.mounts, shown)), authority


def with_variables(spec: CellSpec) -> CellSpec:
    """Return the spec with the variables of its inspection.

    A variable of the image would hide ours; one of the caller is meant.
    """
    if spec.inspection is None:
        return spec
    return replace(spec, env={**spec.inspection.environment(), **spec.env})


def trusted_roots(ceiling: NetworkCeiling) -> str:
    """Return the certificates of this machine's authorities and of the operator's files, as PEM."""
    system = next((path for path in _SYSTEM_BUNDLES if os.path.isfile(path)), None)
    files = [*([system] if system else ()), *ceiling.ca_files]
    bundles = []
    for path in files:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                bundles.append(file.read(_MAX_BUNDLE))
        except OSError as exc:
            raise BackendUnavailable(
                f"the certificates in {path} cannot be read: {exc.strerror or exc}",
                hint="check network.ca_files",
            ) from exc
    return "\n".join(_pem(der).strip() for text in bundles for der in _certificates(text)) + "\n"


def authority_pem(authority: Authority) -> str:
    return _pem(authority.certificate)


def make_authority(sandbox: str, roots: str) -> Authority:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            "inspection requires the library cryptography", hint=install_command("secrets")
        ) from exc
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, AUTHORITY_NAME)])
    owner = x509.UniformResourceIdentifier(f"urn:sandkasten:{sandbox}")
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=2))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([owner]), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(
        certificate.public_bytes(serialization.Encoding.DER),
        key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        roots,
    )


def java_trust_store(certificates: list[bytes]) -> bytes:
    """Return a trust store in Java's own format (JKS, version 2)."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, der in enumerate(certificates):
        # A trusted certificate: alias, date, type, length, DER.
        body += struct.pack(">I", 2) + text(f"ca{number}") + struct.pack(">Q", 0)
        body += text("X.509") + struct.pack(">I", len(der)) + der
    # The format's own salt; the sum detects damage and protects nothing.
    salted = TRUST_STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(salted + body, usedforsecurity=False).digest()


def _certificates(pem: str) -> list[bytes]:
    parts = pem.split("-----BEGIN CERTIFICATE-----")[1:]
    return [base64.b64decode(part.partition("-----END")[0]) for part in parts]


def _pem(der: bytes) -> str:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
