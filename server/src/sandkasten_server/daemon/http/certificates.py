"""TLS contexts of the listeners, from the operator's certificates or the daemon's own authority.

A certificate that clients would refuse is InvalidConfiguration before anything is served: the key
belongs to another one, it has expired, is not valid yet, or is not for the names of the domain.
That is found by a handshake in memory, with the library that serves and no parser besides.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten_server.daemon.http.local_authority import local_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_server.api.previews.preview_rules import PreviewRules

# Any name of the domain stands for all: a wildcard matches one label.
_LABEL: Final = "1-sbx-0123456789abcdef"
# Constants of OpenSSL (x509_vfy.h); the standard library has no names for them.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = 62
_MAX_ROUNDS: Final = 8


def tls_context(cert: Path, key: Path | None, setting: str) -> ssl.SSLContext:
    """Return a server's context; InvalidConfiguration if the files do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would ask for it on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as exc:
        reason, hint = _trouble(exc)
        raise InvalidConfiguration(
            f"the certificate {cert} and its key cannot be used: {reason}",
            hint=hint.format(setting=setting, key=setting.replace("cert", "key")),
            setting=setting,
        ) from exc
    return context


def preview_context(settings: PreviewRules) -> ssl.SSLContext:
    """Return the context of the names of `previews.domain`. Blocks for a moment."""
    assert settings.domain is not None
    if settings.cert is None:
        certificate = local_certificate(settings.directory, settings.domain)
        return tls_context(certificate, None, "previews.cert")
    context = tls_context(settings.cert, settings.key, "previews.cert")
    code = _refused_with(context, settings.cert, f"{_LABEL}.{settings.domain}")
    if code is None:
        return context
    reason = {
        _NOT_YET_VALID: "it is not valid yet",
        _EXPIRED: "it has expired",
        _OTHER_NAME: f"it is not for *.{settings.domain}",
    }.get(code, f"clients would refuse it (OpenSSL's code {code})")
    raise InvalidConfiguration(
        f"the certificate {settings.cert} cannot be used: {reason}",
        hint=f"get a certificate for *.{settings.domain}, or leave out previews.cert and "
        "previews.key: the daemon then makes one",
        setting="previews.cert",
    )


def _trouble(exc: Exception) -> tuple[str, str]:
    """Return the reason and the hint for files that cannot be loaded."""
    reason: Any = getattr(exc, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate", "set {key} to the key of {setting}"
    if isinstance(exc, ssl.SSLError):
        return (
            f"they are not valid PEM files without a password ({reason or exc})",
            "use PEM files, the chain in {setting}, its own certificate first",
        )
    return (
        str(getattr(exc, "strerror", None) or exc),
        "use PEM files, the chain in {setting}, readable by the daemon's user",
    )


def _refused_with(context: ssl.SSLContext, cert: Path, name: str) -> int | None:
    """Return OpenSSL's code if a client that trusts the certificate refuses it for a name."""
    trusting = ssl.create_default_context(cafile=cert)
    # The certificate itself is trusted, whatever signed it: that is not checked here.
    trusting.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(_MAX_ROUNDS):
        try:
            client.do_handshake()
            return None
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as exc:
            return exc.verify_code
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
    raise AssertionError("the handshake in memory did not end")
