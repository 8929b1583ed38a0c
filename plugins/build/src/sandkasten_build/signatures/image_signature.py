"""One signature of an image as a value, from the formats of cosign. Pure.

Everything here is untrusted: `signature_check` decides what it is worth. Malformed input raises
ValueError.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

SIMPLE_LAYER: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
BUNDLE_PREFIX: Final = "application/vnd.dev.sigstore.bundle"
IN_TOTO: Final = "application/vnd.in-toto+json"
_SIGNATURE: Final = "dev.cosignproject.cosign/signature"
_CERTIFICATE: Final = "dev.sigstore.cosign/certificate"
_CHAIN: Final = "dev.sigstore.cosign/chain"
_BUNDLE: Final = "dev.sigstore.cosign/bundle"
# Two certificates and an entry of the log take about 8 KiB.
_MAX_ANNOTATIONS: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of a transparency log and the log's promise to include it."""

    body: str
    """Base64, as the log signs it."""
    integrated_time: int
    log_id: str
    log_index: int
    promise: str
    """The log's signature, in base64."""


@dataclass(frozen=True, slots=True)
class ImageSignature:
    payload: str
    """Base64 of what was signed."""
    signature: str
    """Base64."""
    payload_type: str = ""
    """The type of the payload of a DSSE envelope; empty if the payload itself was signed."""
    certificates: tuple[str, ...] = ()
    """In PEM, the signer's first; empty if a key signed."""
    entry: LogEntry | None = None

    @property
    def data(self) -> bytes:
        return _bytes(self.payload)

    @property
    def message(self) -> bytes:
        """Return the bytes that the signature is over."""
        if not self.payload_type:
            return self.data
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.data), self.data)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_record(raw: Mapping[str, Any]) -> ImageSignature:
    """Return a signature as the store has it."""
    entry = raw.get("entry")
    try:
        return ImageSignature(
            payload=str(raw["payload"]),
            signature=str(raw["signature"]),
            payload_type=str(raw.get("payload_type", "")),
            certificates=tuple(str(certificate) for certificate in raw.get("certificates") or ()),
            entry=None if entry is None else LogEntry(**entry),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError("not a stored signature") from exc


def from_layer(payload: bytes, annotations: Mapping[str, Any]) -> ImageSignature:
    """Return the signature of a layer in cosign's own format."""
    signature = annotations.get(_SIGNATURE)
    if not isinstance(signature, str):
        raise ValueError("it has no signature beside its payload")
    pem = str(annotations.get(_CERTIFICATE) or "") + "\n" + str(annotations.get(_CHAIN) or "")
    bundle = str(annotations.get(_BUNDLE) or "")
    if len(pem) + len(bundle) + len(signature) > _MAX_ANNOTATIONS:
        raise ValueError("its annotations are too large")
    try:
        entry = _rekor_entry(json.loads(bundle)) if bundle else None
    except RecursionError as exc:
        raise ValueError("its entry of the transparency log is malformed") from exc
    return ImageSignature(
        payload=base64.b64encode(payload).decode(),
        signature=signature,
        certificates=tuple(_split(pem)),
        entry=entry,
    )


def from_bundle(data: bytes) -> ImageSignature:
    """Return the signature of a sigstore bundle with a DSSE envelope."""
    try:
        tree = json.loads(data)
        envelope, material = tree["dsseEnvelope"], tree.get("verificationMaterial") or {}
        entries = material.get("tlogEntries") or []
        return ImageSignature(
            payload=str(envelope["payload"]),
            signature=str(envelope["signatures"][0]["sig"]),
            payload_type=str(envelope["payloadType"]),
            certificates=tuple(_pem(certificate) for certificate in _raw_certificates(material)),
            entry=_bundle_entry(entries[0]) if entries else None,
        )
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError("it is not a bundle with a signed statement") from exc


def _rekor_entry(tree: Any) -> LogEntry:
    try:
        payload = tree["Payload"]
        return LogEntry(
            body=str(payload["body"]),
            integrated_time=int(payload["integratedTime"]),
            log_id=str(payload["logID"]),
            log_index=int(payload["logIndex"]),
            promise=str(tree["SignedEntryTimestamp"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError("its entry of the transparency log is malformed") from exc


def _bundle_entry(tree: Any) -> LogEntry | None:
    promise = (tree.get("inclusionPromise") or {}).get("signedEntryTimestamp")
    if not promise:
        return None
    return LogEntry(
        body=str(tree["canonicalizedBody"]),
        integrated_time=int(tree["integratedTime"]),
        log_id=_bytes(str(tree["logId"]["keyId"])).hex(),
        log_index=int(tree["logIndex"]),
        promise=str(promise),
    )


def _raw_certificates(material: Mapping[str, Any]) -> list[str]:
    single = material.get("certificate")
    if single:
        return [str(single["rawBytes"])]
    chain = (material.get("x509CertificateChain") or {}).get("certificates") or []
    return [str(certificate["rawBytes"]) for certificate in chain]


def _pem(raw: str) -> str:
    lines = base64.encodebytes(_bytes(raw)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n"


def _split(pem: str) -> list[str]:
    end = "-----END CERTIFICATE-----"
    return [part.strip() + f"\n{end}\n" for part in pem.split(end)[:-1] if part.strip()]


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError("it is not base64") from exc
