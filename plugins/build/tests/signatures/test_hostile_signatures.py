"""What anyone who may write to a repository can store beside an image, and certificates of others.

Each is refused with a reason or ignored; the last test of a group shows the accepted twin.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from plugins.build.tests.signatures.signed_site import Site
from sandkasten.errors import InvalidConfiguration, UntrustedImage
from sandkasten.model.images.image_info import PullRequest
from sandkasten.model.images.trust_rules import TrustRule
from sandkasten_build.signatures.image_signature import ImageSignature
from sandkasten_build.signatures.image_trust import Evidence, ImageTrust
from tests.hostwatch import loopwatch
from tests.images import registries, signing
from tests.images.signing import Authority, b64, key, pem, public, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.images.registries import Running

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P76")]

DIGEST = "sha256:" + "a" * 64
NAME = "registry.example/team/app:1"
SIGNATURE = "dev.cosignproject.cosign/signature"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def keyless(authority: Authority, tmp_path: Path) -> TrustRule:
    return TrustRule(
        identity=signing.IDENTITY,
        issuer=signing.ISSUER,
        root=written(tmp_path / "root.pem", pem(authority.root)),
    )


def reason(rule: TrustRule, signature: ImageSignature) -> str | None:
    """Return why a stored signature is refused; None if it is accepted."""
    stored = Evidence((DIGEST,), (signature,), datetime.now(UTC).timestamp()).to_json()
    try:
        ImageTrust([rule]).check(NAME, [json.loads(json.dumps(stored))])
    except UntrustedImage as exc:
        return exc.message.partition("not accepted: ")[2]
    return None


def by_certificate(
    private: ec.EllipticCurvePrivateKey, *chain: x509.Certificate, **changes: Any
) -> ImageSignature:
    data = signing.payload(DIGEST)
    fields = {
        "payload": b64(data),
        "signature": b64(signing.made_by(private, data)),
        "certificates": tuple(pem(certificate).decode() for certificate in chain),
        **changes,
    }
    return ImageSignature(**fields)


def extended(authority: Authority, private: Any, extension: x509.ExtensionType) -> Any:
    return signing.certificate(
        "", private, "middle", authority.middle_key,
        extensions=signing.signer_extensions(), critical=(extension,),
    )  # fmt: skip


def test_a_certificate_with_a_rule_that_is_not_known_is_refused(authority, keyless):
    private = key()
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    leaf = extended(authority, private, odd)
    assert "critical extension" in (
        reason(keyless, by_certificate(private, leaf, authority.middle)) or ""
    )
    plain = authority.leaf(private)
    assert reason(keyless, by_certificate(private, plain, authority.middle)) is None


@pytest.mark.parametrize(
    ("critical", "path_length", "accepted"),
    [
        ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),), None, False),
        ((x509.NameConstraints([x509.DNSName("example.org")], None),), None, False),
        ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),), 0, True),
    ],
    ids=["for servers", "constrained", "for signers"],
)
def test_an_authority_is_used_only_for_what_it_is_made_for(
    authority, keyless, critical, path_length, accepted
):
    middle = signing.certificate(
        "middle", authority.middle_key, "root", authority.root_key,
        authority=True, critical=critical, path_length=path_length,
    )  # fmt: skip
    private = key()
    refusal = reason(keyless, by_certificate(private, authority.leaf(private), middle))
    assert refusal == (None if accepted else "its certificate does not lead to the given root")


def test_an_authority_below_one_that_may_have_none_is_refused(authority, keyless):
    short = signing.certificate(
        "middle", authority.middle_key, "root", authority.root_key, authority=True, path_length=0
    )
    below_key, private = key(), key()
    below = signing.certificate("below", below_key, "middle", authority.middle_key, authority=True)
    leaf = signing.certificate(
        "", private, "below", below_key, extensions=signing.signer_extensions()
    )
    refusal = reason(keyless, by_certificate(private, leaf, below, short))
    assert refusal == "its certificate does not lead to the given root"
    assert reason(keyless, by_certificate(private, leaf, below, authority.middle)) is None


def test_a_signer_cannot_act_as_an_authority(authority, keyless):
    """A signer that has a certificate must not be able to issue one for another identity."""
    own_key, private = key(), key()
    own = authority.leaf(own_key, identity="https://git.example/evil/x")
    forged = signing.certificate("", private, "", own_key, extensions=signing.signer_extensions())
    refusal = reason(keyless, by_certificate(private, forged, own, authority.middle))
    assert refusal == "its certificate does not lead to the given root"


def test_malformed_parts_are_refused_with_a_reason(authority, keyless, tmp_path):
    private = key()
    leaf = authority.leaf(private)
    other_kind = ed448.Ed448PrivateKey.generate()
    odd_key = signing.certificate(
        "", other_kind, "middle", authority.middle_key, extensions=signing.signer_extensions()
    )
    for changes, why in (
        ({"certificates": ("nonsense",)}, "its certificate is malformed"),
        ({"certificates": ("\ud800",)}, "its certificate is malformed"),
        ({"certificates": (pem(odd_key).decode(),)}, "a key of an unknown kind"),
        ({"certificates": ()}, "it has no certificate"),
        ({"signature": "???"}, "it is not base64"),
        ({"payload": "???"}, "it is malformed"),
        ({"payload_type": "application/vnd.in-toto+json"}, "its certificate did not make it"),
    ):
        refusal = reason(keyless, by_certificate(private, leaf, authority.middle, **changes))
        assert why in (refusal or ""), (changes, refusal)
    by_key = TrustRule(key=written(tmp_path / "key.pub", public(private)))
    for data in (b"[]", b"{}", b"\xff", b'{"critical": 7}', b"[" * 100_000):
        signature = ImageSignature(b64(data), b64(signing.made_by(private, data)))
        assert reason(by_key, signature) == "its payload is malformed"


def test_a_key_of_another_kind_stops_the_start(tmp_path):
    pem_key = ed448.Ed448PrivateKey.generate().public_key()
    data = pem_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(InvalidConfiguration, match="cannot be used"):
        ImageTrust([TrustRule(key=written(tmp_path / "key.pub", data))])


def test_unreadable_evidence_in_the_store_counts_as_none(tmp_path):
    trust = ImageTrust([TrustRule(key=written(tmp_path / "key.pub", public(key())))])
    for stored in ({}, {"digests": 7}, {"digests": [], "signatures": [{}], "pulled_at": 0}):
        with pytest.raises(UntrustedImage, match="has no signature"):
            trust.check(NAME, [stored])


# ---- beside an image in a registry


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@loopwatch.of_the_test
def site_of(running: Running, tmp_path: Path, host: str = "") -> tuple[Site, registries.Made]:
    """Push an image of this test's own."""
    layer = registries.layer({"name": tmp_path.name.encode()})
    image = registries.image(layer, architecture=registries.HERE)
    registries.push(running.base, "team/app", tmp_path.name, image)
    return Site(tmp_path, host or running.host, tmp_path.name), image


@loopwatch.of_the_test
def stored(running: Running, repository: str, image: registries.Made, layers: list[Any]) -> None:
    """Store a manifest under the tag of the signatures of an image, as it is."""
    base = signing.artifact(b"{}", signing.SIMPLE)
    for layer in layers:
        for blob in layer.pop("blobs", ()):
            registries.push(running.base, repository, "aside", signing.artifact(blob, "x/y"))
    manifest = {**json.loads(base.manifest), "layers": layers}
    registries.push(running.base, repository, "aside", base)
    tag = image.digest.replace(":", "-") + ".sig"
    data = json.dumps(manifest).encode()
    registries.put_manifest(running.base, repository, tag, data, signing.OCI_MANIFEST)


async def test_strange_layers_beside_the_good_signature_are_skipped(running, tmp_path):
    site, image = site_of(running, tmp_path)
    private = key()
    rule = TrustRule(key=written(tmp_path / "key.pub", public(private)))
    data = signing.payload(image.digest)
    good = {SIGNATURE: b64(signing.made_by(private, data))}
    deep = {**good, "dev.sigstore.cosign/bundle": "[" * 100_000}
    large = {**good, "dev.sigstore.cosign/chain": "x" * 200_000}

    def layer(blob: bytes, annotations: Any, kind: str = signing.SIMPLE) -> dict[str, Any]:
        return {
            "mediaType": kind,
            "digest": registries.sha256(blob),
            "size": len(blob),
            "annotations": annotations,
            "blobs": [blob],
        }

    bad = [
        layer(b"not JSON", {SIGNATURE: b64(b"x")}),
        layer(b"a", {}),
        layer(b"b", {SIGNATURE: 7}) | {"annotations": None},
        layer(data, deep),
        layer(data, large),
        layer(b"[" * 100_000, {}, signing.BUNDLE),
        layer(b'{"dsseEnvelope": {"signatures": []}}', {}, signing.BUNDLE),
    ]
    stored(running, "team/app", image, [dict(entry) for entry in bad])
    await site.refused(rule)
    stored(running, "team/app", image, [*(dict(entry) for entry in bad), layer(data, good)])
    resolved = await site.catalog(rule).resolve(site.name)
    # Only what was accepted is kept.
    (record,) = site.store.signatures(resolved.id)
    assert [entry["signature"] for entry in record["signatures"]] == [good[SIGNATURE]]


async def test_no_other_path_of_the_registry_is_asked_for_a_referrer(running, tmp_path):
    with registries.front(running) as front:
        site, image = site_of(running, tmp_path, front.host)
        paths = ["../../../other/manifests/1", "sha256:zz", "latest", "", 7]
        listed = [{"artifactType": signing.BUNDLE, "digest": path} for path in paths]

        def answer(request: registries.Asked) -> None:
            if "/referrers/" in request.path:
                request.answer(200, {}, json.dumps({"manifests": listed}).encode())
            else:
                request.pass_on()

        front.rule = answer
        await site.refused(TrustRule(key=written(tmp_path / "key.pub", public(key()))))
        tag = site.name.rpartition(":")[2]
        expected = {f"/manifests/{tag}", f"/manifests/{image.digest.replace(':', '-')}.sig"}
        requested = {line[line.index("/manifests/") :] for line in front.paths("/manifests/")}
        assert requested == expected


async def test_a_pull_of_the_same_content_elsewhere_keeps_the_signatures(running, tmp_path):
    """One content has one entry in the store, whatever repository it came from."""
    site, image = site_of(running, tmp_path)
    tag = site.name.rpartition(":")[2]
    rules = []
    for repository in ("team/app", "other/app"):
        private = key()
        path = written(tmp_path / f"{repository[:4]}.pub", public(private))
        rules.append(TrustRule(images=(f"{running.host}/{repository}:*",), key=path))
        registries.push(running.base, repository, tag, image)
        signing.sign(running, repository, image.digest, private)
    unsigned = TrustRule(images=(f"{running.host}/third/*",), unsigned=True)
    registries.push(running.base, "third/app", tag, image)
    images = site.catalog(*rules, unsigned)
    names = [f"{running.host}/{owner}/app:{tag}" for owner in ("team", "other", "third")]
    for name in names:
        await images.pull(PullRequest(name))
        await images.pull(PullRequest(name))
    again = site.catalog(*rules, unsigned, pull="never")
    assert len({(await again.resolve(name)).id for name in names}) == 1
    assert len(site.store.signatures((await again.resolve(names[0])).id)) == 2
    # The twin: the signature of one repository is not enough for a rule about the other.
    swapped = [TrustRule(images=rules[0].images, key=rules[1].key)]
    (first, second) = site.store.signatures((await again.resolve(names[0])).id)
    ImageTrust(swapped).check(names[0], [first])
    with pytest.raises(UntrustedImage, match="not made by this key"):
        ImageTrust(swapped).check(names[0], [second])
