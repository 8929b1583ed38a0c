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

from sandkasten.errors import InvalidConfiguration, UntrustedImage
from sandkasten.images.signatures.image_signature import ImageSignature, from_record
from sandkasten.images.signatures.signature_discovery import find_signatures
from sandkasten.images.signatures.trust_rules import TrustRule, covering
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten.images.registry.registry_client import Registry

T = TypeVar("T")
_SETTING: Final = "policy.images.signatures"
_MAX_PEM: Final = 1 << 20


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
            "signatures": [one.to_json() for one in self.signatures],
        }

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Evidence:
        """Return what the store has; nothing, if that is unreadable."""
        try:
            digests = tuple(str(one) for one in raw["digests"])
            signatures = tuple(from_record(one) for one in raw["signatures"])
            return cls(digests, signatures, float(raw["pulled_at"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()


class ImageTrust:
    def __init__(self, rules: Sequence[TrustRule]) -> None:
        self._rules = tuple(rules)
        # Loaded now: a key that cannot be read must stop the start, not the first sandbox.
        self._checks = {one: self._check_of(one) for one in self._rules if not one.unsigned}

    async def collect(
        self, registry: Registry, name: str, digests: Sequence[str], *, unsigned: bool
    ) -> Evidence:
        """Return the accepted signatures of an image that is about to be pulled; raise if there
        is none. `unsigned`: whether a rule that requires none applies to this pull.
        """
        rules = self.require_rule(name)
        if unsigned and any(one.unsigned for one in rules):
            return Evidence(tuple(digests))
        found = tuple(await find_signatures(registry, digests))
        evidence = Evidence(tuple(digests), found, time.time())
        signing = [one for one in rules if not one.unsigned]
        self._check(name, signing, [evidence])
        # Others are not kept: anyone who may write to the repository could fill the store.
        kept = [
            one
            for one in found
            if any(self._refusal(rule, one, evidence) is None for rule in signing)
        ]
        return replace(evidence, signatures=tuple(kept))

    def check(self, name: str, stored: Sequence[Mapping[str, Any]]) -> None:
        """Raise UntrustedImage unless a rule accepts the image with what the store has of it."""
        rules = self.require_rule(name)
        if not any(one.unsigned for one in rules):
            self._check(name, rules, [Evidence.read(one) for one in stored])

    def _check(self, name: str, rules: Sequence[TrustRule], pulls: Sequence[Evidence]) -> None:
        reasons: list[str] = []
        for evidence in pulls:
            for rule in rules:
                for one in evidence.signatures:
                    reason = self._refusal(rule, one, evidence)
                    if reason is None:
                        return
                    reasons.append(reason)
        count = sum(len(one.signatures) for one in pulls)
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
        from sandkasten.images.signatures.signature_check import Unverified

        try:
            self._checks[rule](signature, evidence)
        except Unverified as exc:
            return str(exc)
        except ValueError:
            return "it is malformed"
        return None

    def _check_of(self, rule: TrustRule) -> Callable[[ImageSignature, Evidence], None]:
        try:
            from sandkasten.images.signatures import signature_check
        except ModuleNotFoundError as exc:
            raise InvalidConfiguration(
                f"{_SETTING} requires the library {exc.name}, which is not installed",
                hint=install_command("signatures"),
                setting=_SETTING,
            ) from exc
        if rule.key:
            key = _loaded(rule.key, signature_check.load_key)
            return lambda one, evidence: signature_check.check_key(one, key, evidence.digests)
        keyless = signature_check.Keyless(
            identity=rule.identity,
            issuer=rule.issuer,
            roots=_loaded(rule.root, signature_check.load_certificates),
            log_key=_loaded(rule.log_key, signature_check.load_key) if rule.log_key else None,
        )
        return lambda one, evidence: signature_check.check_keyless(
            one, keyless, evidence.digests, datetime.fromtimestamp(evidence.pulled_at, UTC)
        )


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
