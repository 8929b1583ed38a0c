"""Servers whose certificates or handshakes are made to keep an inspecting egress process busy."""

from __future__ import annotations

import contextlib
import datetime
import socketserver
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.network.conftest import served
from tests.network.tls_api import NAMES, Api
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sandkasten import Sandbox

pytestmark = pytest.mark.root
_PEM = serialization.Encoding.PEM


class Chains:
    """An authority, and servers below it with chains of any shape."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        root = self._sign("root", self._key, "root", self._key, [_CA])
        self.root = directory / "root.pem"
        self.root.write_bytes(root.public_bytes(_PEM))

    def _sign(self, name: str, key: Any, issuer: str, signer: Any, extensions: list[Any]) -> Any:
        def named(text: str) -> Any:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for one in extensions:
            builder = builder.add_extension(one, critical=False)
        return builder.sign(signer, hashes.SHA256())

    def file(self, subjects: Sequence[str], *, names: int = 0, excluded: int = 0) -> Path:
        """Return a server's key and chain: the leaf, and one certificate for each subject.

        Each is signed by the next one, so the chain is valid unless a subject occurs twice.
        `names` are added to the leaf, and `excluded` name constraints to each other certificate.
        """
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in (*subjects, "leaf")]
        issuers = [*zip(subjects, keys[1:], strict=True), ("root", self._key)]
        extensions: list[x509.ExtensionType] = [_CA]
        if excluded:
            away = [x509.DNSName(f"x{n}") for n in range(excluded)]
            extensions.append(x509.NameConstraints(None, away))
        hosts = [*NAMES, *(f"a{n}" for n in range(names))]
        leaf = [x509.SubjectAlternativeName([x509.DNSName(one) for one in hosts])]
        made = [self._sign("server", keys[0], *issuers[0], leaf)]
        for n, subject in enumerate(subjects):
            made.append(self._sign(subject, keys[n + 1], *issuers[n + 1], extensions))
        pem = keys[0].private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self._directory / f"chain{len(list(self._directory.iterdir()))}.pem"
        path.write_bytes(pem + b"".join(one.public_bytes(_PEM) for one in made))
        return path


_CA = x509.BasicConstraints(True, None)


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(tmp_path_factory.mktemp("chains"))


@pytest.fixture
def server(chains: Chains, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Api]]:
    """Return what starts a server with a chain, which sandboxes accept if it is valid."""
    monkeypatch.setenv("SANDKASTEN_NETWORK_CA_FILES", str(chains.root))
    running: list[Any] = []

    def start(chain: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Api:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = version
        context.load_cert_chain(chain)
        api = Api(None)
        api.socket = context.wrap_socket(
            api.socket, server_side=True, do_handshake_on_connect=False
        )
        running.append(served(api))
        running[-1].__enter__()
        return api

    yield start
    for one in running:
        one.__exit__(None, None, None)


@pytest.fixture
def inspecting(boxed: Callable[..., Sandbox], chains: Chains) -> Callable[[], Sandbox]:
    def make() -> Sandbox:
        network = {"allow": ["*"], "inspect": True}
        return boxed(backend="local", network=network)

    return make


def _asked(box: Sandbox, port: int) -> str:
    return box.exec(["curl", "-sS", "-m", "30", f"https://good.test:{port}/user"]).output


def _reasons(box: Sandbox) -> list[str | None]:
    """Return why connections ended, when at least one has."""
    end = time.monotonic() + PATIENCE_S
    while not (closed := [one for one in box.network_log() if one.event == "closed"]):
        assert time.monotonic() < end, box.network_log()
        time.sleep(0.01)
    return [one.reason for one in closed]


class _Flood(socketserver.BaseRequestHandler):
    """Answers the start of a handshake with warnings until the client leaves."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            # What a server sends before the client has sent anything is passed on as it is.
            self.request.recv(1)
            while True:
                self.request.sendall(_WARNINGS)


_WARNINGS = bytes([21, 3, 3, 0, 2, 1, 90]) * 10_000


def test_a_handshake_without_an_end_is_ended_and_the_process_goes_on(server, inspecting, chains):
    honest = server(chains.file(["a"]))
    flood = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Flood)
    flood.daemon_threads = True
    box = inspecting()
    with served(flood) as port:
        refused = "peer misbehaved: TooManyWarningAlertsReceived"
        assert _asked(box, port) == f"good.test cannot be used over TLS: {refused}\n"
        assert _reasons(box) == [refused]
        assert _asked(box, honest.port) == "who are you\n"


# Each with the tail of the reason. Without a bound, the first takes the library years.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a hundred of one subject": (
        {"subjects": ["many"] * 100},
        "the server sent 101 certificates, and at most 10 are read",
    ),
    "few of one subject": (
        {"subjects": ["many"] * 9},
        "the server sent too many certificates with the same subject",
    ),
    "names and constraints": (
        {"subjects": [f"ca{n}" for n in range(3)], "names": 2000, "excluded": 500},
        "bytes of certificates, and at most 16384 are read",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_hostile_chain_is_refused_and_the_process_goes_on(
    server, inspecting, chains, name, version
):
    shape, reason = HOSTILE[name]
    hostile, honest = server(chains.file(**shape), version), server(chains.file(["a"]))
    box = inspecting()
    told = _asked(box, hostile.port)
    assert told.startswith("good.test cannot be used over TLS: the server sent "), told
    assert reason in told
    (logged,) = _reasons(box)
    assert logged is not None
    assert reason in logged
    assert box.network().opened == 1
    assert _asked(box, honest.port) == "who are you\n"


@pytest.mark.parametrize(
    "subjects", [[], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]], ids=len
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_ordinary_chain_is_accepted(server, inspecting, chains, subjects, version):
    api = server(chains.file(subjects), version)
    assert _asked(inspecting(), api.port) == "who are you\n"


def test_many_names_are_accepted(server, inspecting, chains):
    api = server(chains.file(["a", "b"], names=500))
    assert _asked(inspecting(), api.port) == "who are you\n"


@pytest.mark.parametrize("required", [True, False])
def test_a_server_without_tls13_is_refused_only_if_the_operator_says_so(
    server, inspecting, chains, monkeypatch, required
):
    monkeypatch.setenv("SANDKASTEN_NETWORK_TLS13", str(required).lower())
    new, old = server(chains.file([])), server(chains.file([]), ssl.TLSVersion.TLSv1_2)
    box = inspecting()
    assert _asked(box, new.port) == "who are you\n"
    told = _asked(box, old.port)
    if required:
        reason = "received fatal alert: ProtocolVersion"
        assert told == f"good.test cannot be used over TLS: {reason}\n"
        assert reason in _reasons(box)
    else:
        assert told == "who are you\n"
