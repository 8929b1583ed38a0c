"""A certificate authority of the daemon's own, for previews without a given certificate.

Makes an authority once and a wildcard certificate when there is none that is valid for long enough.
The operator adds `ca.pem` to the browsers that open previews; its key never leaves the directory.
The authority is limited to the domain: it cannot vouch for any other name.
"""

from __future__ import annotations

import datetime
import re
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import InvalidConfiguration, NotFound, StoreUnusable
from sandkasten.model.optional_extras import install_command
from sandkasten_server.api.previews.preview_rules import PreviewRules

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_runtime.assembly.settings.resolver import Settings

_AUTHORITY_FILE: Final = "ca.pem"
_AUTHORITY_KEY: Final = "ca.key"
_CERTIFICATE: Final = "cert.pem"
_MAX_PEM_BYTES: Final = 65_536
_CERTIFICATE_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n\Z"
)
_DAY: Final = datetime.timedelta(days=1)
_AUTHORITY_DAYS: Final = 3650
# Browsers refuse certificates of servers that are valid for longer than 398 days.
_CERTIFICATE_DAYS: Final = 390
_RENEW_DAYS: Final = 60


def local_certificate(directory: Path, domain: str) -> Path:
    """Return a file with a certificate for `*.domain` and its key. Blocks for a moment."""
    try:
        from cryptography import x509
    except ModuleNotFoundError as exc:
        raise InvalidConfiguration(
            "a certificate for previews.domain requires the library cryptography",
            hint=f"{install_command('secrets')}, or set previews.cert and previews.key",
            setting="previews.domain",
        ) from exc
    folder = directory / domain
    path = folder / _CERTIFICATE
    now = datetime.datetime.now(datetime.UTC)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            if certificate.not_valid_after_utc > now + _RENEW_DAYS * _DAY:
                return path
        _make(folder, domain, now)
    except (OSError, ValueError) as exc:
        if isinstance(exc, OSError):
            raise disk_error("make the certificate of previews", exc, StoreUnusable) from exc
        raise StoreUnusable(
            f"the certificate authority in {folder} is damaged",
            hint="remove the directory, and add the new ca.pem to your browsers",
            reason="damaged",
        ) from exc
    return path


def certificate_in_use(settings: Settings) -> str:
    """Return the certificate of the authority that a daemon with these settings has made."""
    return authority_certificate(settings.of(PreviewRules))


def authority_certificate(settings: PreviewRules) -> str:
    """Return the certificate of the authority in PEM; NotFound if there is none."""
    if settings.domain is None:
        raise NotFound(
            "previews.domain is not set, so the daemon has no authority",
            hint="use the daemon's settings: SANDKASTEN_CONFIG names their file",
        )
    if settings.cert is not None:
        raise NotFound(
            "the daemon serves previews.cert, a certificate of another authority",
            hint="clients must trust the authority that signed it",
        )
    path = settings.directory / settings.domain / _AUTHORITY_FILE
    try:
        # Not a FIFO, which would never be read to its end.
        is_file = path.is_file()
        content = read_small_file(path, _MAX_PEM_BYTES) if is_file else b""
    except OSError as exc:
        raise disk_error("read the certificate of the authority", exc, StoreUnusable) from exc
    if not is_file and not path.exists():
        raise NotFound(
            f"there is no authority in {path.parent}",
            hint="start the daemon with previews.listen: it makes one",
        )
    if content is None or not _CERTIFICATE_PEM.match(content):
        # Another file, such as the key, must not be given to clients.
        raise StoreUnusable(
            f"{path} is not a certificate",
            hint="remove its directory, and add the new ca.pem to your browsers",
            reason="damaged",
        )
    return content.decode("ascii")


def _make(folder: Path, domain: str, now: datetime.datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, signer = _authority(folder, domain, now)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(f"*.{domain}"), x509.DNSName(domain)]
    public = authority.public_key()
    certificate = (
        _builder(f"*.{domain}", key.public_key(), now, _CERTIFICATE_DAYS)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_file(folder / _CERTIFICATE, _pem(certificate) + _pem(authority) + _key_pem(key))


def _authority(folder: Path, domain: str, now: datetime.datetime) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    certificate, key_file = folder / _AUTHORITY_FILE, folder / _AUTHORITY_KEY
    if certificate.exists() and key_file.exists():
        existing = x509.load_pem_x509_certificate(certificate.read_bytes())
        if existing.not_valid_after_utc > now + _CERTIFICATE_DAYS * _DAY:
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            return existing, key
    new_key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    # A rule about names does not apply to addresses.
    addresses = [x509.IPAddress(ip_network(network)) for network in ("0.0.0.0/0", "::/0")]
    only = x509.NameConstraints([x509.DNSName(domain)], excluded_subtrees=addresses)
    name = f"Sandkasten previews of {domain}"
    signed = (
        _builder(name, new_key.public_key(), now, _AUTHORITY_DAYS)
        .issuer_name(_subject(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(only, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(new_key, hashes.SHA256())
    )
    write_file(key_file, _key_pem(new_key))
    write_file(certificate, _pem(signed), mode=0o644)
    return signed, new_key


def _builder(name: str, public_key: Any, now: datetime.datetime, days: int) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    # A common name has at most 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem
