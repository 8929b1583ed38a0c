"""Certificates of previews: those that clients would refuse are refused by name at the start."""

from __future__ import annotations

import datetime
import os
import subprocess
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandkasten.errors import InvalidConfiguration, NotFound, StoreUnusable
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.daemon.http.certificates import preview_context
from sandkasten_server.daemon.http.local_authority import authority_certificate, local_certificate

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
DOMAIN = "preview.example.com"
WILDCARD = x509.DNSName(f"*.{DOMAIN}")


def pem(key, password=None):
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def certificate(key, *names, after=NOW - DAY, before=NOW + DAY, issuer=None, signer=None):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(after)
        .not_valid_after(before)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer or key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def context(place, chain, key):
    (place / "cert.pem").write_bytes(chain)
    (place / "key.pem").write_bytes(key)
    files = {"previews.cert": str(place / "cert.pem"), "previews.key": str(place / "key.pem")}
    return preview_context(load({"previews.domain": DOMAIN, **files}, {}).of(PreviewRules))


def test_a_certificate_that_clients_would_refuse_is_refused_by_name(tmp_path):
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    good = certificate(key, WILDCARD)
    context(tmp_path, good, pem(key))
    refused = {
        "the key belongs to another certificate": (good, pem(other)),
        "they are not valid PEM files": (b"no certificate", pem(key)),
        "they are not valid PEM files without a password": (good, pem(key, b"secret")),
        "it has expired": (certificate(key, WILDCARD, before=NOW - DAY / 2), pem(key)),
        "it is not valid yet": (certificate(key, WILDCARD, after=NOW + DAY / 2), pem(key)),
        f"it is not for *.{DOMAIN}": (certificate(key, x509.DNSName(DOMAIN)), pem(key)),
    }
    for reason, files in refused.items():
        with pytest.raises(InvalidConfiguration) as caught:
            context(tmp_path, *files)
        assert reason in caught.value.message
        assert caught.value.details["setting"] == "previews.cert"


def test_the_own_authority_vouches_only_for_names_of_its_domain(tmp_path):
    folder = local_certificate(tmp_path, DOMAIN).parent
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    for name, accepted in (
        (WILDCARD, True),
        (x509.DNSName("example.com"), False),
        (x509.DNSName("preview.example.com.evil.test"), False),
        (x509.IPAddress(ip_address("127.0.0.1")), False),
        (x509.IPAddress(ip_address("::1")), False),
    ):
        (tmp_path / "leaf.pem").write_bytes(
            certificate(key, name, issuer=authority.subject, signer=signer)
        )
        words = ["openssl", "verify", "-CAfile", str(folder / "ca.pem"), str(tmp_path / "leaf.pem")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is accepted, (name, done.stdout, done.stderr)


def test_the_certificate_of_the_authority_is_printed_only_where_there_is_one(tmp_path):
    values = {"data_dir": str(tmp_path), "previews.domain": DOMAIN}
    settings = load(values, {}).of(PreviewRules)
    with pytest.raises(NotFound, match="there is no authority"):
        authority_certificate(settings)
    local_certificate(settings.directory, DOMAIN)
    assert authority_certificate(settings).startswith("-----BEGIN CERTIFICATE-----")
    with pytest.raises(NotFound, match="not set"):
        authority_certificate(load({"data_dir": str(tmp_path)}, {}).of(PreviewRules))
    given = {**values, "previews.cert": "a.pem", "previews.key": "a.key"}
    with pytest.raises(NotFound, match="another authority"):
        authority_certificate(load(given, {}).of(PreviewRules))


def test_only_a_certificate_is_printed(tmp_path):
    settings = load({"data_dir": str(tmp_path), "previews.domain": DOMAIN}, {}).of(PreviewRules)
    local_certificate(settings.directory, DOMAIN)
    certificate = settings.directory / DOMAIN / "ca.pem"
    key = certificate.with_name("ca.key")
    assert key.stat().st_mode & 0o777 == 0o600
    certificate.unlink()
    for make in (
        lambda: certificate.symlink_to(key),
        lambda: certificate.write_bytes(b"\xff" * 10),
        lambda: os.mkfifo(certificate),
        certificate.mkdir,
    ):
        make()
        with pytest.raises(StoreUnusable, match="is not a certificate"):
            authority_certificate(settings)
        if not certificate.is_dir():
            certificate.unlink()
