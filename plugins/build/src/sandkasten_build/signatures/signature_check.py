"""Verify one signature: the key or certificate that made it, and the image that it names. Pure.

Raises `Unverified` with the reason. Needs the library cryptography (extra `signatures`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown, wildcard_match
from sandkasten_build.signatures.image_signature import IN_TOTO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten_build.signatures.image_signature import ImageSignature, LogEntry

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey

_TYPES: Final = frozenset({"cosign container image signature", "atomic container signature"})
_PREDICATE: Final = "https://sigstore.dev/cosign/sign/v1"
# Extensions of Fulcio with the issuer of the identity, as DER since version 2 and as plain bytes
# before.
_ISSUER: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_OLD_ISSUER: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_MAX_CHAIN: Final = 4
_KNOWN: Final = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage)
# What the library raises for a certificate or key that it cannot read.
_MALFORMED: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class Unverified(Exception):
    """Why a signature is not accepted."""


@dataclass(frozen=True, slots=True)
class Keyless:
    """Who must have signed: an identity that an issuer vouched for, by a certificate that leads
    to one of the roots.
    """

    identity: str
    """`*` stands for any characters."""
    issuer: str
    roots: tuple[x509.Certificate, ...]
    log_key: PublicKey | None = None
    """The key of the transparency log, which records when it was signed; without it, the
    certificate must have been valid when the image was pulled, and those of Fulcio are valid for
    ten minutes."""


def load_key(pem: bytes) -> PublicKey:
    """Raise ValueError for anything but a public key that signatures are made with."""
    try:
        key = load_pem_public_key(pem)
    except UnsupportedAlgorithm as exc:
        raise ValueError(str(exc)) from exc
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        raise ValueError("not a key for ECDSA, RSA or Ed25519")
    return key


def load_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificates(pem))


def check_key(signature: ImageSignature, key: PublicKey, digests: Sequence[str]) -> None:
    _verify(key, _decoded(signature.signature), signature.message, "it was not made by this key")
    check_subject(signature, digests)


def check_keyless(
    signature: ImageSignature, rule: Keyless, digests: Sequence[str], pulled_at: datetime
) -> None:
    if not signature.certificates:
        raise Unverified("it has no certificate")
    try:
        chain = [x509.load_pem_x509_certificate(pem.encode()) for pem in signature.certificates]
        leaf = chain[0]
        key = leaf.public_key()
    except _MALFORMED as exc:
        raise Unverified("its certificate is malformed") from exc
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        raise Unverified("its certificate has a key of an unknown kind")
    _verify(
        key, _decoded(signature.signature), signature.message, "its certificate did not make it"
    )
    signed_at = pulled_at
    if rule.log_key is not None:
        if signature.entry is None:
            raise Unverified("it has no entry of a transparency log")
        signed_at = _logged_at(signature, signature.entry, rule.log_key)
    _check_signer(leaf, rule)
    _check_chain(leaf, chain[1:], rule.roots, signed_at)
    check_subject(signature, digests)


def check_subject(signature: ImageSignature, digests: Sequence[str]) -> None:
    """Raise unless the signed payload names this image."""
    try:
        tree = json.loads(signature.data)
        if signature.payload_type:
            named = _statement_subjects(signature.payload_type, tree)
        else:
            critical = tree["critical"]
            if critical["type"] not in _TYPES:
                raise Unverified("it is not a signature of an image")
            named = [critical["image"]["docker-manifest-digest"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise Unverified("its payload is malformed") from exc
    if not set(named) & set(digests):
        raise Unverified(f"it signs {shown(str(named[0]) if named else 'nothing', 80)}")


def _statement_subjects(payload_type: str, tree: Any) -> list[str]:
    if payload_type != IN_TOTO or tree["predicateType"] != _PREDICATE:
        raise Unverified("it is not a signature of an image")
    return [f"sha256:{subject['digest']['sha256']}" for subject in tree["subject"]]


def _verify(key: PublicKey, signature: bytes, message: bytes, why: str) -> None:
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(signature, message)
    except InvalidSignature as exc:
        raise Unverified(why) from exc


# ---- certificates


def _check_signer(leaf: x509.Certificate, rule: Keyless) -> None:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        strange = _unknown_rules(leaf, x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *_MALFORMED) as exc:
        raise Unverified("its certificate names no signer") from exc
    if strange:
        raise Unverified("its certificate has a critical extension that is not known here")
    signers = [
        *names.get_values_for_type(x509.UniformResourceIdentifier),
        *names.get_values_for_type(x509.RFC822Name),
    ]
    if ExtendedKeyUsageOID.CODE_SIGNING not in usage:
        raise Unverified("its certificate is not for signing")
    if not any(wildcard_match(rule.identity, signer) for signer in signers):
        raise Unverified(f"it was made by {shown(', '.join(signers) or 'an unnamed signer', 200)}")
    issuer = _issuer(leaf)
    if issuer != rule.issuer:
        raise Unverified(f"its signer was identified by {shown(issuer or 'no issuer', 200)}")


def _issuer(leaf: x509.Certificate) -> str:
    for oid in (_ISSUER, _OLD_ISSUER):
        try:
            value = leaf.extensions.get_extension_for_oid(oid).value
        except x509.ExtensionNotFound:
            continue
        raw = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
        if oid == _OLD_ISSUER:
            return raw.decode(errors="replace")
        # A DER string of less than 128 bytes, or with one or two bytes of length.
        if raw[:1] == b"\x0c" and len(raw) > 1:
            skip = 2 if raw[1] < 0x80 else 2 + (raw[1] & 0x7F)
            return raw[skip:].decode(errors="replace")
    return ""


def _check_chain(
    leaf: x509.Certificate,
    others: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    at: datetime,
) -> None:
    """Raise unless the certificate leads to a root by certificates that were valid then."""
    at_hand = leaf
    for depth in range(_MAX_CHAIN):
        _check_valid(at_hand, at)
        for root in roots:
            if _issued(at_hand, root, depth) and _is_valid(root, at):
                return
        above = next((other for other in others if _issued(at_hand, other, depth)), None)
        if above is None:
            break
        at_hand = above
    raise Unverified("its certificate does not lead to the given root")


def _issued(certificate: x509.Certificate, issuer: x509.Certificate, below: int) -> bool:
    """Return whether `issuer` is an authority that issued `certificate`; `below` are authorities
    between it and the signer.
    """
    try:
        constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not constraints.ca or certificate == issuer:
            return False
        if constraints.path_length is not None and constraints.path_length < below:
            return False
        usage = issuer.extensions.get_extension_for_class(x509.KeyUsage).value
        if not usage.key_cert_sign or _unknown_rules(issuer) or not _may_issue_signers(issuer):
            return False
        certificate.verify_directly_issued_by(issuer)
    except (x509.ExtensionNotFound, InvalidSignature, *_MALFORMED):
        return False
    return True


def _unknown_rules(certificate: x509.Certificate, *more: type) -> bool:
    """Return whether it has a rule that must not be ignored, such as a constraint of names."""
    understood = (*_KNOWN, *more)
    return any(
        each.critical and not isinstance(each.value, understood) for each in certificate.extensions
    )


def _may_issue_signers(authority: x509.Certificate) -> bool:
    """Return whether an authority that is limited to some purposes may be used for signing."""
    try:
        usage = authority.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return bool(
        {ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage)
    )


def _check_valid(certificate: x509.Certificate, at: datetime) -> None:
    if not _is_valid(certificate, at):
        raise Unverified(f"its certificate was not valid at {at:%Y-%m-%d %H:%M:%S} UTC")


def _is_valid(certificate: x509.Certificate, at: datetime) -> bool:
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


# ---- the transparency log


def _logged_at(signature: ImageSignature, entry: LogEntry, key: PublicKey) -> datetime:
    """Return when the log recorded exactly this signature."""
    payload = {
        "body": entry.body,
        "integratedTime": entry.integrated_time,
        "logID": entry.log_id,
        "logIndex": entry.log_index,
    }
    promised = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    _verify(key, _decoded(entry.promise), promised, "its entry is not of this transparency log")
    try:
        spec = json.loads(_decoded(entry.body))["spec"]
        if "data" in spec:
            logged = (
                spec["data"]["hash"]["value"],
                spec["signature"]["content"],
                spec["signature"]["publicKey"]["content"],
            )
        else:
            first = spec["signatures"][0]
            logged = spec["payloadHash"]["value"], first["signature"], first["verifier"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as exc:
        raise Unverified("its entry of the transparency log is malformed") from exc
    digest = hashlib.sha256(signature.data).hexdigest()
    leaf = x509.load_pem_x509_certificate(signature.certificates[0].encode())
    if logged[0] != digest or logged[1] != signature.signature or not _same(logged[2], leaf):
        raise Unverified("its entry of the transparency log is about another signature")
    return datetime.fromtimestamp(entry.integrated_time, UTC)


def _same(encoded: str, leaf: x509.Certificate) -> bool:
    try:
        return x509.load_pem_x509_certificate(_decoded(encoded)) == leaf
    except ValueError:
        return False


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise Unverified("it is not base64") from exc
