"""Inspection of a sandbox's TLS: which hosts, which secrets, and what programs inside need for it.

Programs inside trust an authority that was made only for their sandbox. They find it through the
variables that they already know.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.network_rules import covers, parse_rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.access.stored_secrets import OpenSecret
    from sandkasten.model.sandbox.network_policy import NetworkPolicy

TRUST_DIR: Final = "/opt/sandkasten/tls"
BUNDLE: Final = "ca-bundle.pem"
AUTHORITY: Final = "ca.pem"
TRUST_STORE: Final = "truststore.jks"
TRUST_STORE_PASSWORD: Final = "changeit"  # noqa: S105  (what Java calls its public trust store)
_BUNDLE_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the egress process of one sandbox inspects, and the secrets that it inserts."""

    all: bool
    """Whether every host is inspected, and not only those of the secrets."""
    secrets: tuple[OpenSecret, ...] = field(default=(), repr=False)
    uninspected: tuple[str, ...] = ()
    """Hosts that are not inspected where all others are."""
    tls13: bool = False
    """Whether servers must speak TLS 1.3."""

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs inside trust the authority and get placeholders.

        OpenSSL, Go and Ruby read the first one; the others name their program.
        """
        bundle = f"{TRUST_DIR}/{BUNDLE}"
        store = (
            f"-Djavax.net.ssl.trustStore={TRUST_DIR}/{TRUST_STORE}"
            f" -Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}"
        )
        return {
            **dict.fromkeys(_BUNDLE_VARIABLES, bundle),
            "NODE_EXTRA_CA_CERTS": f"{TRUST_DIR}/{AUTHORITY}",
            "JAVA_TOOL_OPTIONS": store,
            **{opened.secret.name: opened.secret.placeholder for opened in self.secrets},
        }


def is_inspected(network: object) -> bool:
    """Return whether a stored network has inspection or secrets."""
    return isinstance(network, dict) and bool(network.get("secrets") or network.get("inspect"))


def check_hosts_allowed(policy: NetworkPolicy, secrets: Sequence[OpenSecret]) -> None:
    """Raise InvalidRequest if no rule can reach a host of a secret: it could never be used."""
    if policy.full or policy.dry_run:
        return
    rules = [parse_rule(text) for text in policy.allow]
    for opened in secrets:
        hosts = [parse_rule(text) for text in opened.secret.hosts]
        if not any(covers(a, b) or covers(b, a) for a in rules for b in hosts):
            raise InvalidRequest(
                f"no rule allows a host of secret {opened.secret.name}",
                hint=f"add --allow {opened.secret.hosts[0]}",
                field="network.secrets",
            )


def check_environment(secrets: Sequence[OpenSecret], env: Mapping[str, str]) -> None:
    """Raise InvalidRequest if a variable has the name of a secret: one would hide the other."""
    for opened in secrets:
        if opened.secret.name in env:
            raise InvalidRequest(
                f"{opened.secret.name} is both a secret and an environment variable",
                hint="leave the variable out: it has the placeholder of the secret",
                field="env",
            )


def refuse_inspection(backend: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"backend {backend} does not support secrets and inspection",
        hint="use a backend that does: sandkasten doctor --all lists what each can do",
        backend=backend,
    )


def created_without_inspection(sandbox: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"sandbox {sandbox} was created without secrets and inspection",
        hint="create a new one with network.secrets or network.inspect",
    )
