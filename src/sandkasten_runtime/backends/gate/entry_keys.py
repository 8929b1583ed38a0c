"""The key, the certificate and the token by which the daemon and the gate of one sandbox know each
other.

The Secret of a Pod holds them, so that every daemon of an installation can reach it; only the
gate's container mounts that. The data directory holds those of a provider's machine. The daemon
knows the gate by its certificate, whatever address it has, and the gate knows the daemon by the
token, which is sent after the handshake.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import secrets
import ssl
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.ids import SandboxId

TOKEN_BYTES: Final = 32
_VALID: Final = datetime.timedelta(days=3650)
# For clocks of nodes that differ.
_BEFORE: Final = datetime.timedelta(days=1)
_CERTIFICATE, _KEY, _TOKEN = "cert.der", "key.der", "token"
_NETWORK: Final = "network-token"


@dataclass(frozen=True, slots=True)
class EntryKeys:
    certificate: bytes
    """DER."""
    key: bytes = field(repr=False)
    """PKCS#8. The daemon itself does not use it."""
    token: bytes = field(repr=False)
    network_token: bytes = field(default=b"", repr=False)
    """Leads to the egress process in place of the runner."""

    def to_network(self) -> EntryKeys:
        """Return the keys with which the egress process is reached."""
        return replace(self, token=self.network_token)

    def to_data(self) -> dict[str, str]:
        """Return the content of the Secret, or of the record of a machine."""
        files = {
            _CERTIFICATE: self.certificate,
            _KEY: self.key,
            _TOKEN: self.token,
            _NETWORK: self.network_token,
        }
        return {name: base64.b64encode(content).decode() for name, content in files.items()}

    def context(self) -> ssl.SSLContext:
        """Return what a connection to the gate uses: its certificate is the only one trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The certificate is compared as a whole, and names no host.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        return context


def from_data(data: Mapping[str, object]) -> EntryKeys | None:
    """Return the keys in such a content; None if they are not there."""
    try:
        certificate, key, token = (
            base64.b64decode(str(data[name]), validate=True)
            for name in (_CERTIFICATE, _KEY, _TOKEN)
        )
        # Daemons before this one made none.
        network = base64.b64decode(str(data.get(_NETWORK) or ""), validate=True)
    except (KeyError, binascii.Error, ValueError):
        return None
    if len(token) != TOKEN_BYTES:
        return None
    return EntryKeys(certificate, key, token, network)


def make_keys(sandbox_id: SandboxId, backend: str) -> EntryKeys:
    """Make new keys. Blocks for a millisecond, and longer the first time. `backend` is the extra
    that has what they are made with.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            f"the {backend} backend requires the library cryptography",
            hint=install_command(backend),
        ) from exc
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, sandbox_id)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return EntryKeys(
        certificate.public_bytes(serialization.Encoding.DER),
        key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        secrets.token_bytes(TOKEN_BYTES),
        secrets.token_bytes(TOKEN_BYTES),
    )
