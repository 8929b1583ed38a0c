"""Signed images: cosign keys and keyless bundles, checked at pull and before each use."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from plugins.build.tests.signatures.signed_site import Site
from sandkasten.errors import InvalidConfiguration, RegistryUnavailable, UntrustedImage
from sandkasten.model.images.image_info import PullRequest
from sandkasten.model.images.trust_rules import TrustRule
from sandkasten.model.spelling import wildcard_match
from sandkasten_build.signatures.image_trust import ImageTrust, covering
from sandkasten_runtime.assembly.settings import resolver
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.registry.registry_http import Patience
from tests.imagekit import docker_members, sketch, write_tar
from tests.images import registries, signing
from tests.images.signing import IDENTITY, ISSUER, Authority, b64, key, pem, public, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.images.registries import Made, Running

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P76")]

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def app(running: Running, tmp_path: Path) -> Made:
    """An image of this test's own, with its own digest."""
    image = registries.image(
        registries.layer({"name": tmp_path.name.encode()}), architecture=registries.HERE
    )
    registries.push(running.base, "team/app", tmp_path.name, image)
    return image


@pytest.fixture
def site(running: Running, tmp_path: Path) -> Site:
    return Site(tmp_path, running.host, tmp_path.name)


@pytest.fixture
def signer(tmp_path: Path) -> Any:
    """A private key, and the rule that wants its signatures."""
    private = key()
    return private, TrustRule(key=written(tmp_path / "cosign.pub", public(private)))


# ---- keys


async def test_an_image_with_the_right_signature_is_pulled_and_used(running, site, app, signer):
    private, rule = signer
    signing.sign(running, "team/app", app.digest, private)
    resolved = await site.catalog(rule).resolve(site.name)
    assert (resolved.kind, resolved.name) == ("layers", site.name)
    # Later uses ask no registry: the signature is kept with the image.
    again = await site.catalog(rule, pull="never").resolve(site.name)
    assert again.id == resolved.id
    assert (await site.catalog(rule, pull="never").resolve(resolved.id)).id == resolved.id


async def test_missing_wrong_and_misplaced_signatures_are_refused_before_any_layer(
    running, site, app, signer, tmp_path
):
    private, rule = signer
    assert "has no signature" in await site.refused(rule)
    signing.sign(running, "team/app", app.digest, key())
    assert "it was not made by this key" in await site.refused(rule)
    other = "sha256:" + "0" * 64
    signing.sign(running, "team/app", app.digest, private, said=signing.payload(other))
    assert f"it signs '{other}'" in await site.refused(rule)
    signing.sign(running, "team/app", app.digest, private, said=b"[]")
    assert "its payload is malformed" in await site.refused(rule)
    foreign = json.loads(signing.payload(app.digest))
    foreign["critical"]["type"] = "something else"
    signing.sign(running, "team/app", app.digest, private, said=json.dumps(foreign).encode())
    assert "not a signature of an image" in await site.refused(rule)
    with registries.front(running) as front:
        aside = Site(tmp_path / "aside", front.host, site.name.rpartition(":")[2])
        await aside.refused(rule)
        assert [path for path in front.paths("/blobs/") if app.layers[0] in path] == []


async def test_a_changed_payload_is_refused(running, site, app, signer):
    private, rule = signer
    good = signing.made_by(private, signing.payload("sha256:" + "1" * 64))
    about = {"dev.cosignproject.cosign/signature": b64(good)}
    tag = app.digest.replace(":", "-") + ".sig"
    artifact = signing.artifact(signing.payload(app.digest), signing.SIMPLE, about)
    registries.push(running.base, "team/app", tag, artifact)
    assert "it was not made by this key" in await site.refused(rule)


async def test_current_rules_apply_to_a_stored_image(running, site, app, signer, tmp_path):
    private, rule = signer
    signing.sign(running, "team/app", app.digest, private)
    await site.catalog(rule).resolve(site.name)
    rotated = TrustRule(key=written(tmp_path / "new.pub", public(key())))
    with pytest.raises(UntrustedImage, match="not made by this key"):
        await site.catalog(rotated, pull="never").resolve(site.name)
    # One of several rules is enough.
    assert await site.catalog(rotated, rule, pull="never").resolve(site.name)
    with pytest.raises(UntrustedImage, match="no rule of"):
        await site.catalog(replace(rule, images=("other/*",)), pull="never").resolve(site.name)


async def test_no_registry_is_asked_for_an_image_that_no_rule_covers(site, signer):
    _, rule = signer
    site.name = f"{site.host}/no/such:1"
    assert "no rule of" in await site.refused(replace(rule, images=("other/*",)))


async def test_an_imported_image_is_unsigned_unless_a_rule_says_that_it_may_be(site, signer):
    _, rule = signer
    archive = write_tar(site.root / "archive", docker_members(sketch()))
    import_file(site.store, Import(archive, name="local/tool:1"))
    with pytest.raises(UntrustedImage, match="has no signature") as refused:
        await site.catalog(rule).resolve("local/tool:1")
    assert "cosign sign" in refused.value.hint
    local = TrustRule(images=("local/*",), unsigned=True)
    assert (await site.catalog(rule, local).resolve("local/tool:1")).kind == "layers"


async def test_a_request_does_not_pull_what_may_be_unsigned_and_the_operator_does(site, app):
    """A pattern for local images may also be the name of a stranger in a registry."""
    rule = TrustRule(unsigned=True)
    with pytest.raises(UntrustedImage, match="has no signature"):
        await site.catalog(rule).resolve(site.name)
    await site.catalog(rule).pull(PullRequest(site.name))
    assert (await site.catalog(rule).resolve(site.name)).kind == "layers"


def test_a_rule_covers_all_spellings_of_a_name():
    hub = TrustRule(images=("docker.io/library/*",))
    for name in ("python:3.11-slim", "docker.io/library/python", "library/python:3"):
        assert covering([hub], name)
        assert covering([TrustRule(images=("python:*",))], name)
    assert not covering([hub], "docker.io/other/python:3")
    assert not covering([hub], "sha256:" + "0" * 64)


async def test_an_image_stored_before_the_rule_gets_its_signature_by_a_pull(
    running, site, app, signer
):
    private, rule = signer
    await site.catalog().resolve(site.name)
    signing.sign(running, "team/app", app.digest, private)
    with pytest.raises(UntrustedImage, match="has no signature") as refused:
        await site.catalog(rule).resolve(site.name)
    assert f"sandkasten image pull {site.name}" in refused.value.hint
    await site.catalog(rule).pull(PullRequest(site.name))
    assert await site.catalog(rule, pull="never").resolve(site.name)


@pytest.mark.parametrize("which", ["index", "manifest"])
async def test_the_signature_may_be_of_the_index_or_of_the_manifest(
    running, site, app, signer, which
):
    private, rule = signer
    data, kind = registries.index({f"linux/{registries.HERE}": app})
    tag = site.name.rpartition(":")[2]
    registries.put_manifest(running.base, "team/app", tag, data, kind)
    signed = registries.sha256(data) if which == "index" else app.digest
    signing.sign(running, "team/app", signed, private)
    assert (await site.catalog(rule).resolve(site.name)).kind == "layers"


async def test_an_alias_with_an_unsigned_target_does_not_fall_back_to_the_host(site, app, signer):
    (site.root / "usr" / "bin").mkdir(parents=True)
    (site.root / "usr" / "bin" / "bash").touch(0o755)
    with pytest.raises(UntrustedImage):
        await site.catalog(signer[1], aliases={"bash": site.name}).resolve("bash")


async def test_a_registry_that_cannot_be_asked_is_not_a_missing_signature(
    running, site, app, signer, monkeypatch
):
    monkeypatch.setattr(Patience, "pause_s", lambda *_: 0.01)
    with registries.front(running) as front:
        aside = Site(site.root / "aside", front.host, site.name.rpartition(":")[2])

        def rule(request: registries.Asked) -> None:
            if request.path.endswith(".sig"):
                request.answer(503, {})
            else:
                request.pass_on()

        front.rule = rule
        with pytest.raises(RegistryUnavailable):
            await aside.catalog(signer[1]).resolve(aside.name)


# ---- referrers and bundles


@pytest.mark.parametrize("api", [True, False], ids=["api", "fallback tag"])
async def test_a_bundle_is_found_among_the_referrers(running, site, app, signer, api):
    private, rule = signer
    subject = {"mediaType": app.media_type, "digest": app.digest, "size": len(app.manifest)}
    artifacts = [
        signing.artifact(data, signing.BUNDLE, artifact_type=signing.BUNDLE, subject=subject)
        # An attestation about the same image, by the same key, is not a signature of it.
        for data in (
            signing.bundle(app.digest, private, predicate="https://slsa.dev/provenance/v1"),
            signing.bundle(app.digest, private),
        )
    ]
    for at, artifact in enumerate(artifacts):
        registries.push(running.base, "team/app", f"referrer{at}-{app.digest[7:19]}", artifact)
    with registries.front(running) as front:
        aside = Site(site.root / "aside", front.host, site.name.rpartition(":")[2])
        if not api:
            listed = signing.referrers(*artifacts)
            kind = "application/vnd.oci.image.index.v1+json"
            tag = app.digest.replace(":", "-")
            registries.put_manifest(running.base, "team/app", tag, listed, kind)

        def answer(request: registries.Asked) -> None:
            if "/referrers/" in request.path and api:
                request.answer(200, {}, signing.referrers(*artifacts))
            else:
                request.pass_on()

        front.rule = answer
        resolved = await aside.catalog(rule).resolve(aside.name)
        assert resolved.kind == "layers"
        assert front.paths("/referrers/")
    if api:
        # The twin: without the referrers there is none.
        assert "has no signature" in await site.refused(rule)


# ---- certificates


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def keyless(authority: Authority, tmp_path: Path) -> TrustRule:
    return TrustRule(
        identity="https://git.example/org/repo/*",
        issuer=ISSUER,
        root=written(tmp_path / "root.pem", pem(authority.root)),
    )


async def test_a_certificate_of_the_right_identity_and_root_is_accepted(
    running, site, app, authority, keyless
):
    signing.sign_keyless(running, "team/app", app, authority)
    assert (await site.catalog(keyless).resolve(site.name)).kind == "layers"


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        ({"identity": "https://git.example/other/repo/x"}, "it was made by"),
        ({"issuer": "https://evil.example"}, "its signer was identified by"),
        ({"usage": ExtendedKeyUsageOID.SERVER_AUTH}, "not for signing"),
        ({"signed_at": NOW - timedelta(days=1)}, "was not valid at"),
    ],
)
async def test_a_certificate_of_another_signer_is_refused(
    running, site, app, authority, keyless, leaf, why
):
    signing.sign_keyless(running, "team/app", app, authority, **leaf)
    assert why in await site.refused(keyless)


async def test_a_certificate_of_another_root_and_a_plain_key_are_refused(
    running, site, app, keyless
):
    signing.sign_keyless(running, "team/app", app, Authority())
    assert "does not lead to the given root" in await site.refused(keyless)
    signing.sign(running, "team/app", app.digest, key())
    assert "it has no certificate" in await site.refused(keyless)


async def test_an_expired_certificate_is_accepted_if_the_log_says_when_it_was_used(
    running, site, app, authority, keyless, tmp_path
):
    logged = replace(keyless, log_key=written(tmp_path / "log.pub", public(authority.log)))
    signing.sign_keyless(running, "team/app", app, authority, signed_at=NOW - timedelta(days=100))
    other = replace(keyless, log_key=written(tmp_path / "other.pub", public(key())))
    assert "not of this transparency log" in await site.refused(other)
    assert (await site.catalog(logged).resolve(site.name)).kind == "layers"


async def test_a_log_entry_about_another_signature_is_refused(
    running, site, app, authority, keyless, tmp_path
):
    logged = replace(keyless, log_key=written(tmp_path / "log.pub", public(authority.log)))
    private = key()
    certificate = authority.leaf(private, at=NOW)
    data = signing.payload(app.digest)
    elsewhere = signing.made_by(private, b"another payload")
    signing.sign(
        running,
        "team/app",
        app.digest,
        private,
        certificate=pem(certificate).decode(),
        chain=pem(authority.middle).decode(),
        bundle=authority.entry(certificate, data, elsewhere, NOW),
    )
    assert "about another signature" in await site.refused(logged)
    signing.sign(
        running,
        "team/app",
        app.digest,
        private,
        certificate=pem(certificate).decode(),
        chain=pem(authority.middle).decode(),
    )
    assert "it has no entry of a transparency log" in await site.refused(logged)


# ---- settings


def test_rules_come_from_the_file_or_as_json(tmp_path, signer):
    _, rule = signer
    (tmp_path / "sandkasten.yaml").write_text(
        "policy:\n  images:\n    signatures:\n"
        f"      - images: ['registry.example/*']\n        key: {rule.key}\n"
        "      - {images: 'local/*', unsigned: true}\n"
    )
    rules = resolver.load({}, {}, tmp_path).named("policy.images.signatures")
    assert rules == (
        TrustRule(images=("registry.example/*",), key=rule.key),
        TrustRule(images=("local/*",), unsigned=True),
    )
    text = json.dumps({"identity": IDENTITY, "issuer": ISSUER, "root": "/r.pem"})
    env = {"SANDKASTEN_POLICY_IMAGES_SIGNATURES": text, "HOME": "/h"}
    assert resolver.load({}, env).named("policy.images.signatures") == (
        TrustRule(identity=IDENTITY, issuer=ISSUER, root="/r.pem"),
    )


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "7",
        "[1]",
        "[{}]",
        '[{"key": ""}]',
        '[{"key": "/k", "unsigned": true}]',
        '[{"key": "/k", "identity": "x"}]',
        '[{"identity": "x", "issuer": "y"}]',
        '[{"unsigned": true}]',
        '[{"kee": "/k"}]',
        '[{"key": "/k", "images": []}]',
        '[{"key": "/k", "unsigned": "yes"}]',
    ],
)
def test_an_invalid_rule_is_refused(value):
    with pytest.raises(InvalidConfiguration) as refused:
        resolver.load({}, {"SANDKASTEN_POLICY_IMAGES_SIGNATURES": value, "HOME": "/h"})
    assert refused.value.message.startswith("SANDKASTEN_POLICY_IMAGES_SIGNATURES")
    assert refused.value.hint


def test_a_key_that_cannot_be_read_stops_the_start(tmp_path):
    for content in (None, b"nonsense"):
        path = tmp_path / "key"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidConfiguration, match="cannot be used"):
            ImageTrust([TrustRule(key=str(path))])


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "anything", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "ab", True),
        ("a*b*c", "a1b2c", True),
        ("a*b", "ab", True),
        ("ab*ba", "aba", False),
        ("*x", "yx", True),
        ("a*", "ba", False),
    ],
)
def test_a_star_is_any_characters(pattern, text, matches):
    assert wildcard_match(pattern, text) is matches
