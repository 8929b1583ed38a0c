"""Whether an image may be used: the operator's rules, applied to the signatures that it has.

A pull fetches the signatures and checks them before any layer; they are stored with the image and
checked again with the current rules each time a sandbox is created from it. Raises UntrustedImage
with the reason, and InvalidConfiguration for a rule whose files cannot be used.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import InvalidConfiguration, InvalidImage, UntrustedImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command
from sandkasten.model.spelling import wildcard_match
from sandkasten_build.signatures.image_signature import (
    BUNDLE_PREFIX,
    SIMPLE_LAYER,
    ImageSignature,
    from_bundle,
    from_layer,
    from_record,
)
from sandkasten_runtime.images.image_config import DIGEST
from sandkasten_runtime.images.image_names import canonical_name, is_id
from sandkasten_runtime.images.registry.image_reference import parse_reference
from sandkasten_runtime.images.registry.manifests import Descriptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from sandkasten.model.images.trust_rules import TrustRule
    from sandkasten_runtime.images.registry.registry_client import Registry

T = TypeVar("T")
_SETTING: Final = "policy.images.signatures"
_MAX_PEM: Final = 1 << 20
_MAX_SIGNATURES: Final = 32
_MAX_BLOB: Final = 256 * 1024
_COSIGN: Final = "application/vnd.dev.cosign.artifact.sig"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The digests by which an image is signed, and its signatures: of one pull."""

    digests: tuple[str, ...] = ()
    signatures: tuple[ImageSignature, ...] = ()
    pulled_at: float = 0.0
    """When they were fetched, by this machine's clock."""

    def to_json(self) -> dict[str, Any]:
        return {
            "digests": list(self.digests),
            "pulled_at": self.pulled_at,
            "signatures": [signature.to_json() for signature in self.signatures],
        }

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Evidence:
        """Return what the store has; nothing, if that is unreadable."""
        try:
            digests = tuple(str(digest) for digest in raw["digests"])
            signatures = tuple(from_record(record) for record in raw["signatures"])
            return cls(digests, signatures, float(raw["pulled_at"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()


class ImageTrust:
    """See `SignatureCheck` in `images.image_plugins`."""

    def __init__(self, rules: Sequence[TrustRule]) -> None:
        self._rules = tuple(rules)
        # Loaded now: a key that cannot be read must stop the start, not the first sandbox.
        self._checks = {rule: self._check_of(rule) for rule in self._rules if not rule.unsigned}

    async def collect(
        self, registry: Registry, name: str, digests: Sequence[str], *, unsigned: bool
    ) -> Mapping[str, Any] | None:
        """See `SignatureCheck.collect`."""
        rules = self.require_rule(name)
        if unsigned and any(rule.unsigned for rule in rules):
            return None
        signatures = tuple(await _find_signatures(registry, digests))
        evidence = Evidence(tuple(digests), signatures, time.time())
        signing = [rule for rule in rules if not rule.unsigned]
        self._check(name, signing, [evidence])
        # Others are not kept: anyone who may write to the repository could fill the store.
        accepted = [
            signature
            for signature in signatures
            if any(self._refusal(rule, signature, evidence) is None for rule in signing)
        ]
        return replace(evidence, signatures=tuple(accepted)).to_json()

    def check(self, name: str, stored: Sequence[Mapping[str, Any]]) -> None:
        """Raise UntrustedImage unless a rule accepts the image with what the store has of it."""
        rules = self.require_rule(name)
        if not any(rule.unsigned for rule in rules):
            self._check(name, rules, [Evidence.read(record) for record in stored])

    def _check(self, name: str, rules: Sequence[TrustRule], pulls: Sequence[Evidence]) -> None:
        reasons: list[str] = []
        for evidence in pulls:
            for rule in rules:
                for signature in evidence.signatures:
                    reason = self._refusal(rule, signature, evidence)
                    if reason is None:
                        return
                    reasons.append(reason)
        count = sum(len(pull.signatures) for pull in pulls)
        if not reasons:
            raise UntrustedImage(
                f"image {name} has no signature",
                hint=f"{_SETTING} requires one: sign it (cosign sign), then pull it again "
                f"(sandkasten image pull {name})",
                image=name,
                rule=_SETTING,
            )
        has = "a signature that is" if count == 1 else f"{count} signatures that are"
        raise UntrustedImage(
            f"image {name} has {has} not accepted: {reasons[0]}",
            hint=f"sign it as {_SETTING} requires, then pull it again "
            f"(sandkasten image pull {name})",
            image=name,
            rule=_SETTING,
        )

    def require_rule(self, name: str) -> list[TrustRule]:
        """Return the rules that cover an image; raise UntrustedImage if there is none."""
        rules = covering(self._rules, name)
        if not rules:
            raise UntrustedImage(
                f"no rule of {_SETTING} covers image {name}",
                hint="use an image that a rule covers, or have the operator add one",
                image=name,
                rule=_SETTING,
            )
        return rules

    def _refusal(
        self, rule: TrustRule, signature: ImageSignature, evidence: Evidence
    ) -> str | None:
        from sandkasten_build.signatures.signature_check import Unverified

        try:
            self._checks[rule](signature, evidence)
        except Unverified as exc:
            return str(exc)
        except ValueError:
            return "it is malformed"
        return None

    def _check_of(self, rule: TrustRule) -> Callable[[ImageSignature, Evidence], None]:
        try:
            from sandkasten_build.signatures import signature_check
        except ModuleNotFoundError as exc:
            raise InvalidConfiguration(
                f"{_SETTING} requires the library {exc.name}, which is not installed",
                hint=install_command("signatures"),
                setting=_SETTING,
            ) from exc
        if rule.key:
            key = _loaded(rule.key, signature_check.load_key)
            return lambda signature, evidence: signature_check.check_key(
                signature, key, evidence.digests
            )
        keyless = signature_check.Keyless(
            identity=rule.identity,
            issuer=rule.issuer,
            roots=_loaded(rule.root, signature_check.load_certificates),
            log_key=_loaded(rule.log_key, signature_check.load_key) if rule.log_key else None,
        )
        return lambda signature, evidence: signature_check.check_keyless(
            signature, keyless, evidence.digests, datetime.fromtimestamp(evidence.pulled_at, UTC)
        )


async def _find_signatures(registry: Registry, digests: Sequence[str]) -> list[ImageSignature]:
    """Return the signatures of these digests: of an index, and of the manifest chosen from it.

    Looks where cosign stores them: at the tag `sha256-<digest>.sig` and at the referrers of the
    digest, by the referrers API or its fallback tag. Bounded; what is malformed is skipped, because
    it is not a signature that could be accepted. Raises what `registry_client` raises if the
    registry cannot be asked.
    """
    signatures: list[ImageSignature] = []
    for digest in digests:
        async for manifest in _manifests(registry, digest):
            async for signature in _signatures(registry, manifest):
                signatures.append(signature)
                if len(signatures) >= _MAX_SIGNATURES:
                    return signatures
    return signatures


async def _manifests(registry: Registry, digest: str) -> AsyncIterator[dict[str, Any]]:
    tagged = await registry.artifact(f"{digest.replace(':', '-')}.sig")
    if tagged is not None:
        yield tagged
    for descriptor in (await registry.referrers(digest))[:_MAX_SIGNATURES]:
        kind = str(descriptor.get("artifactType") or "")
        if not kind.startswith((_COSIGN, BUNDLE_PREFIX)):
            continue
        named = str(descriptor.get("digest") or "")
        # Anything else could be another path of the registry.
        artifact = await registry.artifact(named) if DIGEST.match(named) else None
        if artifact is not None:
            yield artifact


async def _signatures(
    registry: Registry, manifest: dict[str, Any]
) -> AsyncIterator[ImageSignature]:
    layers = manifest.get("layers")
    for layer in layers[:_MAX_SIGNATURES] if isinstance(layers, list) else ():
        kind = str(layer.get("mediaType") if isinstance(layer, dict) else "")
        if kind != SIMPLE_LAYER and not kind.startswith(BUNDLE_PREFIX):
            continue
        try:
            size, named = int(layer["size"]), str(layer["digest"])
            if not 0 < size <= _MAX_BLOB or not DIGEST.match(named):
                continue
            data = await registry.blob(Descriptor(kind, named, size)).read_all()
            annotations = layer.get("annotations") or {}
            yield from_layer(data, annotations) if kind == SIMPLE_LAYER else from_bundle(data)
        except (InvalidImage, ValueError, KeyError, TypeError, AttributeError):
            continue


def _loaded(path: str, load: Callable[[bytes], T]) -> T:
    try:
        with Path(path).open("rb") as file:
            return load(file.read(_MAX_PEM))
    except (OSError, ValueError, TypeError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidConfiguration(
            f"{_SETTING} names {path}, which cannot be used: {reason}",
            hint="give the path of a file in PEM",
            setting=_SETTING,
        ) from exc


def covering(rules: Sequence[TrustRule], name: str) -> list[TrustRule]:
    """Return the rules that cover an image."""
    spelled = [name] if is_id(name) else [canonical_name(name), parse_reference(name).full]
    return [
        rule
        for rule in rules
        if any(wildcard_match(pattern, text) for pattern in rule.images for text in spelled)
    ]
