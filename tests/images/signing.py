"""Signatures as cosign makes and stores them, with keys and authorities of the test.

Written from the formats, not with the code under test.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.hostwatch import loopwatch
from tests.images import registries
from tests.images.registries import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IDENTITY = "https://git.example/org/repo/.ci/release.yml@refs/tags/v1"
ISSUER = "https://tokens.git.example"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def made_by(private: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    return private.sign(message, ec.ECDSA(hashes.SHA256()))


def payload(digest: str) -> bytes:
    return json.dumps(
        {
            "critical": {
                "identity": {"docker-reference": "registry.example/team/app"},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    ).encode()


def statement(digest: str, predicate: str = "https://sigstore.dev/cosign/sign/v1") -> bytes:
    return json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}}],
            "predicateType": predicate,
            "predicate": {},
        }
    ).encode()


def pae(data: bytes) -> bytes:
    kind = b"application/vnd.in-toto+json"
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(data), data)


# ---- artifacts in a registry


def artifact(
    blob: bytes,
    media_type: str,
    annotations: Mapping[str, str] | None = None,
    artifact_type: str = "",
    subject: Mapping[str, Any] | None = None,
) -> registries.Made:
    config = b"{}"
    tree = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        **({"artifactType": artifact_type} if artifact_type else {}),
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": sha256(config),
            "size": len(config),
        },
        "layers": [
            {
                "mediaType": media_type,
                "digest": sha256(blob),
                "size": len(blob),
                "annotations": dict(annotations or {}),
            }
        ],
        **({"subject": dict(subject)} if subject else {}),
    }
    manifest = json.dumps(tree).encode()
    return registries.Made(manifest, OCI_MANIFEST, {sha256(config): config, sha256(blob): blob})


@loopwatch.of_the_test
def sign(
    running: registries.Running,
    repository: str,
    digest: str,
    private: ec.EllipticCurvePrivateKey,
    *,
    said: bytes | None = None,
    **annotations: str,
) -> bytes:
    """Store a signature beside an image, under the tag that cosign uses; return the payload."""
    data = payload(digest) if said is None else said
    about = {"dev.cosignproject.cosign/signature": b64(made_by(private, data))}
    about |= {f"dev.sigstore.cosign/{name}": value for name, value in annotations.items()}
    tag = digest.replace(":", "-") + ".sig"
    registries.push(running.base, repository, tag, artifact(data, SIMPLE, about))
    return data


def bundle(
    digest: str, private: ec.EllipticCurvePrivateKey, certificate: bytes = b"", **more: Any
) -> bytes:
    data = statement(digest, **more)
    material: dict[str, Any] = {"publicKey": {"hint": ""}}
    if certificate:
        material = {"certificate": {"rawBytes": b64(certificate)}, "tlogEntries": []}
    return json.dumps(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": material,
            "dsseEnvelope": {
                "payload": b64(data),
                "payloadType": "application/vnd.in-toto+json",
                "signatures": [{"sig": b64(made_by(private, pae(data)))}],
            },
        }
    ).encode()


def referrers(*made: registries.Made, kind: str = BUNDLE) -> bytes:
    entries = [
        {
            "mediaType": OCI_MANIFEST,
            "digest": one.digest,
            "size": len(one.manifest),
            "artifactType": kind,
        }
        for one in made
    ]
    index = "application/vnd.oci.image.index.v1+json"
    return json.dumps({"schemaVersion": 2, "mediaType": index, "manifests": entries}).encode()


# ---- certificates


@dataclass(frozen=True)
class Authority:
    """A root and an intermediate authority, and a transparency log."""

    root_key: ec.EllipticCurvePrivateKey = field(default_factory=key)
    middle_key: ec.EllipticCurvePrivateKey = field(default_factory=key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=key)

    @property
    def root(self) -> x509.Certificate:
        return certificate("root", self.root_key, "root", self.root_key, authority=True)

    @property
    def middle(self) -> x509.Certificate:
        return certificate("middle", self.middle_key, "root", self.root_key, authority=True)

    def leaf(
        self,
        private: ec.EllipticCurvePrivateKey,
        *,
        identity: str = IDENTITY,
        issuer: str = ISSUER,
        at: datetime | None = None,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING,
    ) -> x509.Certificate:
        """Return a certificate that is valid for ten minutes, as Fulcio's are."""
        return certificate(
            "",
            private,
            "middle",
            self.middle_key,
            at=at,
            extensions=signer_extensions(identity, issuer, usage),
        )

    def entry(self, leaf: x509.Certificate, data: bytes, signature: bytes, at: datetime) -> str:
        """Return an entry of the log with its promise, as cosign stores it."""
        body = json.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {
                        "hash": {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}
                    },
                    "signature": {
                        "content": b64(signature),
                        "publicKey": {"content": b64(pem(leaf))},
                    },
                },
            }
        ).encode()
        said = {
            "body": b64(body),
            "integratedTime": int(at.timestamp()),
            "logID": "ab" * 32,
            "logIndex": 7,
        }
        promised = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
        return json.dumps(
            {"SignedEntryTimestamp": b64(made_by(self.log, promised)), "Payload": said}
        )


@loopwatch.of_the_test
def sign_keyless(
    running: registries.Running,
    repository: str,
    made: registries.Made,
    authority: Authority,
    *,
    signed_at: datetime | None = None,
    **leaf: Any,
) -> None:
    """Store a signature with a certificate and an entry of the log, as `cosign sign` does."""
    private, at = key(), signed_at or datetime.now(UTC)
    certificate = authority.leaf(private, at=at, **leaf)
    data = payload(made.digest)
    signature = made_by(private, data)
    about = {
        "dev.cosignproject.cosign/signature": b64(signature),
        "dev.sigstore.cosign/certificate": pem(certificate).decode(),
        "dev.sigstore.cosign/chain": pem(authority.middle).decode(),
        "dev.sigstore.cosign/bundle": authority.entry(certificate, data, signature, at),
    }
    tag = made.digest.replace(":", "-") + ".sig"
    registries.push(running.base, repository, tag, artifact(data, SIMPLE, about))


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def signer_extensions(
    identity: str = IDENTITY,
    issuer: str = ISSUER,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING,
) -> tuple[x509.ExtensionType, ...]:
    """Return what Fulcio writes into the certificate of a signer."""
    der = b"\x0c" + bytes([len(issuer)]) + issuer.encode()
    return (
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]),
        x509.ExtendedKeyUsage([usage]),
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8"), der),
    )


def certificate(
    name: str,
    private: Any,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    at: datetime | None = None,
    extensions: tuple[x509.ExtensionType, ...] = (),
    critical: tuple[x509.ExtensionType, ...] = (),
    path_length: int | None = None,
) -> x509.Certificate:
    begins = at or datetime.now(UTC)
    lasts = timedelta(days=3650) if authority else timedelta(minutes=10)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - (lasts if authority else timedelta(minutes=1)))
        .not_valid_after(begins + lasts)
        .add_extension(x509.BasicConstraints(authority, path_length), critical=True)
        .add_extension(_usage(authority=authority), critical=True)
    )
    for one in extensions:
        builder = builder.add_extension(one, critical=False)
    for one in critical:
        builder = builder.add_extension(one, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])
