"""A sandbox has only `lo`: no ports of the host, of other sandboxes, or of the internet."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from sandkasten_contract.shared_sandbox_cases import each
from tests.patience import PATIENCE_S
from tests.security.harness import POD_NETWORK, Box, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.promise("P03")

REACH = """
import json, socket, sys
family, address = json.loads(sys.argv[1])
made = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
made.settimeout(30)
try:
    made.connect(tuple(address) if isinstance(address, list) else address)
    print(json.dumps("connected"))
except TimeoutError:
    print(json.dumps("silence"))
except OSError as exc:
    print(json.dumps("refused"))
"""


def _reach(box: Box, family: str, address: object) -> str:
    answer: str = box.python(REACH, json.dumps([family, address]))
    return answer


@contextlib.contextmanager
def _listening(family: int, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()
        server.setblocking(False)
        yield server


def _nobody_came(server: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("kubernetes", reason=POD_NETWORK)
def test_there_is_only_the_loopback_interface(shared_box):
    code = "import json, socket; print(json.dumps(socket.if_nameindex()))"
    assert shared_box.python(code) == [[1, "lo"]]
    routes = shared_box.exec(["cat", "/proc/net/route"]).text.splitlines()
    assert len(routes) <= 1


@pytest.mark.needs_program("python3")
def test_loopback_itself_works(shared_box):
    code = """
import json, socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
print(json.dumps(socket.create_connection(server.getsockname()).recv(5).decode()))
"""
    assert shared_box.python(code) == "hello"


@pytest.mark.needs_program("python3")
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.not_on("kubernetes", reason=POD_NETWORK)
def test_a_server_on_the_host_is_not_reachable(bind, shared_box):
    with _listening(socket.AF_INET, (bind, 0)) as server:
        port = server.getsockname()[1]
        own = _own_addresses()
        for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", *own):
            assert _reach(shared_box, "AF_INET", [address, port]) == "refused", address
        _nobody_came(server)
        # The twin: the server was there to be reached.
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
            pass


def _own_addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks for the route
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


@pytest.mark.needs_program("python3")
def test_a_server_on_the_hosts_ipv6_loopback_is_not_reachable(shared_box):
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with server:
        server.setblocking(False)
        port = server.getsockname()[1]
        assert _reach(shared_box, "AF_INET6", ["::1", port]) == "refused"
        assert _reach(shared_box, "AF_INET6", ["::ffff:127.0.0.1", port]) == "refused"
        _nobody_came(server)


@pytest.mark.needs_program("python3")
@each(
    ("family", "address"),
    [
        ("AF_INET", "169.254.169.254"),
        ("AF_INET", "2852039166"),
        ("AF_INET", "0251.0376.0251.0376"),
        ("AF_INET", "0xA9FEA9FE"),
        ("AF_INET", "169.16689662"),
        ("AF_INET", "100.100.100.200"),
        ("AF_INET", "192.0.0.192"),
        ("AF_INET", "1.1.1.1"),
        ("AF_INET", "10.0.0.1"),
        ("AF_INET6", "fd00:ec2::254"),
        ("AF_INET6", "::ffff:169.254.169.254"),
        ("AF_INET6", "2606:4700:4700::1111"),
        ("AF_INET6", "fe80::1%lo"),
    ],
)
@pytest.mark.not_on("kubernetes", reason=POD_NETWORK)
def test_no_address_beyond_loopback_answers(family, address, shared_box):
    assert _reach(shared_box, family, [address, 80]) == "refused"


@pytest.mark.needs_program("python3")
def test_names_are_not_resolved(shared_box):
    code = """
import json, socket
seen = []
for name in ("example.com", "metadata.google.internal", "host.docker.internal"):
    try:
        seen.append(socket.getaddrinfo(name, 80) and name)
    except OSError:
        seen.append(None)
print(json.dumps(seen))
"""
    assert shared_box.python(code) == [None, None, None]
    # Kubernetes wants the address of a name server; nothing listens there.
    none = "nameserver 127.0.0.1\n" if shared_box.kubernetes else ""
    assert shared_box.exec(["cat", "/etc/resolv.conf"]).text == none


@pytest.mark.needs_program("python3")
@each("server", ["8.8.8.8", "127.0.0.53", "2001:4860:4860::8888"])
def test_a_datagram_to_a_name_server_goes_nowhere(server, shared_box):
    code = """
import json, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
made = socket.socket(family, socket.SOCK_DGRAM)
made.settimeout(1)
try:
    made.connect((sys.argv[1], 53))
    made.send(b"x" * 20)
    made.recv(100)
    print(json.dumps("answered"))
except OSError:
    print(json.dumps("nothing"))
"""
    assert shared_box.python(code, server) == "nothing"


@pytest.mark.needs_program("python3")
def test_an_abstract_socket_of_the_host_is_not_reachable(shared_box):
    name = f"\0sandkasten-security-{os.getpid()}"
    with _listening(socket.AF_UNIX, name) as server:
        assert _reach(shared_box, "AF_UNIX", name) == "refused"
        _nobody_came(server)
        with socket.socket(socket.AF_UNIX) as twin:
            twin.connect(name)


@pytest.mark.aspect("neighbour")
@pytest.mark.needs_program("python3")
def test_an_abstract_socket_of_a_neighbour_is_not_reachable(box, neighbour):
    name = "\0sandkasten-between-neighbours"
    code = """
import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind("\\0sandkasten-between-neighbours")
server.listen()
tcp = socket.create_server(("0.0.0.0", 4567))
print("up", flush=True)
time.sleep(90)
"""
    started = neighbour.start(["/usr/bin/python3", "-I", "-c", code], timeout_s=100)
    poll("the neighbour's server", lambda: neighbour.kept(started).stdout != b"up\n")
    assert _reach(box, "AF_UNIX", name) == "refused"
    assert _reach(box, "AF_INET", ["127.0.0.1", 4567]) == "refused"
    # The twin, and the host's own loopback, which is a third place.
    assert _reach(neighbour, "AF_INET", ["127.0.0.1", 4567]) == "connected"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 4567), timeout=PATIENCE_S)
    neighbour.call("exec.signal", exec_id=started, signal=9)


@pytest.mark.needs_program("python3")
def test_vsock_cannot_be_opened(shared_box):
    code = """
import json, socket
try:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    print(json.dumps("opened"))
except OSError as exc:
    print(json.dumps(exc.errno))
"""
    assert shared_box.python(code) in (errno.EPERM, errno.EAFNOSUPPORT)


def test_sockets_of_the_host_cannot_be_seen(shared_box, data_dir):
    table = shared_box.exec(["cat", "/proc/net/unix"]).text
    assert str(data_dir) not in table
    assert "/run/" not in table.replace("/run/sandkasten", "")
    found = shared_box.exec(["find", "/", "-xdev", "-type", "s", "-not", "-path", "/proc/*"]).text
    assert found == ""


@pytest.mark.needs_program("python3")
def test_interfaces_and_routes_cannot_be_made(shared_box):
    code = """
import fcntl, json, socket, struct
seen = []
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SIOCSIFFLAGS, SIOCSIFADDR, SIOCADDRT, SIOCSIFNAME
for request in (0x8914, 0x8916, 0x890B, 0x8923):
    try:
        fcntl.ioctl(made, request, struct.pack("16s112x", b"lo"))
        seen.append("done")
    except OSError as exc:
        seen.append(exc.errno)
# RTM_NEWLINK of a dummy interface
link = struct.pack("HHiIHHiII", 0, 0, 0, 0, 0, 0, 0, 0, 0)
body = struct.pack("BxHiII", 0, 0, 0, 0, 0)
info = struct.pack("HH8s", 4 + 6, 1, b"dummy\\0\\0\\0")
nested = struct.pack("HH", 4 + len(info), 18) + info
message = struct.pack("IHHII", 16 + len(body) + len(nested), 16, 0x605, 1, 0) + body + nested
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink.send(message)
answer = netlink.recv(4096)
seen.append(-struct.unpack("i", answer[16:20])[0])
print(json.dumps(seen))
"""
    seen = shared_box.python(code)
    if shared_box.gvisor:
        assert not {0, "done"} & set(seen)
    else:
        assert seen == [errno.EPERM] * 5


@pytest.mark.not_on("kubernetes", reason=POD_NETWORK)
def test_a_port_connects_inside_the_sandbox_and_not_on_the_host(box):
    """The only way to a port is through the runner, which is inside as well."""
    from sandkasten.errors import ConnectionRefused, SandkastenError

    with _listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectionRefused):
            box.call("port.connect", port=port)
        for address in (*_own_addresses(), "169.254.169.254"):
            with pytest.raises(SandkastenError):
                box.call("port.connect", port=port, host=address)
        _nobody_came(server)
