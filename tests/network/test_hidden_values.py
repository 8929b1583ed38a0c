"""Answers of a host are searched for values, and what is shown tells nothing about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from sandkasten import Secrets
from tests.network.tls_api import VALUE
from tests.network.value_forms import FORMS
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten import Sandbox

pytestmark = [pytest.mark.root, pytest.mark.promise("P77")]
GUIDE = Path(__file__).parents[2] / "docs/guides/secrets.md"
BEARER = "Authorization: Bearer {value}"
NETWORK: Final = {"allow": ["good.test", "evil.test"], "secrets": ["TOKEN"], "inspect": True}
# In the guide's table.
SAMPLE = "a/<\"' +&b"
# With every character that an encoding changes, and without.
ODD = "gh/p+Q<z>7&k=t'\"\\v %~ 0123456789Ab"
PLAIN = "ghp_Qz7Xk9vRt2mN4pL8sW6y"
# As a signature in a URL is written; with escapes of its own.
ESCAPED = "sv=2024&amp;sig=Qz7Xk9%2BRt2mN%2F4pL8%3D"
# At the end of what is hidden: it says how long the value is.
PADDING = re.compile(r"(=|%3D|&#x3D;|\0)*\Z")
# Prints for each path the bytes that arrive until the server has ended, or has sent `most`.
READER = f"""
import json, select, socket, ssl, sys
name, port, paths = sys.argv[1], int(sys.argv[2]), json.load(open("paths"))
trusting = ssl.create_default_context()
opened, got = {{}}, {{}}
for path, most in paths:
    made = trusting.wrap_socket(socket.create_connection((name, port)), server_hostname=name)
    head = f"GET {{path}} HTTP/1.1\\r\\nHost: {{name}}\\r\\nConnection: close\\r\\n\\r\\n"
    made.sendall(head.encode())
    made.settimeout(0)
    opened[made] = (path, most)
    got[path] = b""
while opened:
    ready = select.select(list(opened), [], [], {PATIENCE_S / 4})[0]
    if not ready:
        break
    for made in ready:
        path, most = opened[made]
        try:
            piece = made.recv(65536)
        except ssl.SSLWantReadError:
            continue
        got[path] += piece
        if not piece or len(got[path].partition(b"\\r\\n\\r\\n")[2]) == most:
            made.close()
            del opened[made]
print(json.dumps([got[path].partition(b"\\r\\n\\r\\n")[2].decode("latin-1") for path, _ in paths]))
"""


@pytest.fixture
def held(boxed: Callable[..., Sandbox], data: Path) -> Callable[[str], Sandbox]:
    """Return what creates a sandbox with a secret for good.test."""

    def create(value: str) -> Sandbox:
        Secrets(data_dir=str(data)).set("TOKEN", value, hosts="good.test", header=BEARER)
        return boxed(network=NETWORK)

    return create


def bodies(box: Sandbox, host: str, port: int, paths: list[tuple[str, int]]) -> list[str]:
    box.write("reader.py", READER)
    box.write("paths", json.dumps(paths))
    done = box.exec(["python3", "reader.py", host, str(port)])
    assert done.exit_code == 0, done
    found: list[str] = json.loads(done.stdout)
    return found


def chunk(text: str) -> str:
    return f"{len(text):x}\r\n{text}\r\n"


def test_a_stream_shows_as_much_of_a_prefix_as_of_any_other_text(held, api):
    box = held(VALUE)
    prefixes = [VALUE[:length] for length in range(1, len(VALUE))]
    others = [one[:-1] + ("x" if one[-1] != "x" else "y") for one in prefixes]
    texts = [f"data: {one}" for one in prefixes + others]
    paths = [(f"/stream?{quote(text)}", len(chunk(text))) for text in texts]
    # All of it arrives although the server does not go on, and in one piece.
    assert bodies(box, "good.test", api.port, paths) == [chunk(text) for text in texts]


def test_a_host_without_the_value_does_not_confirm_a_guess(held, api):
    box = held(VALUE)
    (shown,) = bodies(box, "evil.test", api.port, [(f"/stream?{quote(VALUE)}", len(chunk(VALUE)))])
    assert shown == chunk(VALUE)


def rows() -> list[tuple[str, str]]:
    """Return the rows of the guide's table of forms."""
    _, _, rest = GUIDE.read_text().partition("| form | `` a/<\"' +&b `` |\n|---|---|\n")
    table = rest.partition("\n\n")[0].splitlines()
    cells = [row.strip("| ").split(" | ") for row in table]
    return [(form, example.strip("` ")) for form, example in cells]


def test_the_guide_lists_the_forms_that_are_tested():
    expected = [(form, encode(SAMPLE)) for form, encode in FORMS.items()]
    shown = [(form, text.replace("\n", "⏎").replace("\0", "␀")) for form, text in expected]
    assert rows() == shown


@pytest.mark.parametrize("value", [ODD, PLAIN, VALUE, ESCAPED])
def test_a_value_is_hidden_in_every_form_of_the_guide(held, api, value):
    api.forms = FORMS
    box = held(value)
    paths = [(f"/form?{quote(form)}", -1) for form in FORMS]
    shown = bodies(box, "good.test", api.port, paths)
    for (form, encode), body in zip(FORMS.items(), shown, strict=True):
        whole = f"[{encode(value)}]\n"
        assert len(body.encode("latin-1")) == len(whole), form
        # Of what is before the value in base64, and of the first zero byte, it says nothing.
        start = {"base64, one byte later": 2, "base64, two bytes later (`Basic`)": 3}.get(form, 1)
        start += form == "UTF-16, big-endian"
        hidden = [one for one in PADDING.sub("", body[start:-2]) if one != "\n"]
        assert set(hidden) == {"*"}, (form, whole, body)
        assert (body[0], body[-2:]) == ("[", "]\n"), form


def frames(box: Sandbox, port: int, query: str, words: list[str]) -> list[Any]:
    """Return the status of a WebSocket and the frames that each message is answered with."""
    code = f"""
import json, os, socket, ssl
trusting = ssl.create_default_context()
made = socket.create_connection(("good.test", {port}), 10)
made = trusting.wrap_socket(made, server_hostname="good.test")
made.sendall(b"GET /socket{query} HTTP/1.1\\r\\nHost: good.test\\r\\n"
             b"Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
             b"Sec-WebSocket-Extensions: permessage-deflate\\r\\n\\r\\n")
file = made.makefile("rb")
out = [file.readline().split()[1].decode()]
while file.readline().strip():
    pass
for word in {words!r} if out == ["101"] else ():
    made.sendall(bytes([0x81, 0x80 | len(word), 0, 0, 0, 0]) + word.encode())
    kind = 0
    while not kind & 0x80 or kind == 0x89:
        kind, length = file.read(2)
        out.append([kind, file.read(length).decode("latin-1")])
print(json.dumps(out))
"""
    done = box.exec(["python3", "-c", code])
    assert done.exit_code == 0, done
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_websocket_hides_a_value_however_it_is_split(held, api):
    box = held(VALUE)
    token = "Bearer " + "*" * len(VALUE)
    shown = frames(box, api.port, "", ["records", "s3cr", "fragments", "after", "close"])
    assert shown == [
        "101",
        [0x81, token],
        [0x81, "s3cr"],
        [0x01, token[:-8]],
        [0x89, "?"],
        [0x80, token[-8:]],
        [0x81, "after"],
        [0x88, "\x03è" + token],
    ]
    # Compressed messages could not be searched: they are not asked for, and not accepted.
    assert "Sec-WebSocket-Extensions" not in api.seen[-1]["headers"]
    assert frames(box, api.port, "?deflate", []) == ["502"]


def test_a_protocol_that_is_not_searched_needs_a_rule_for_its_port(boxed, data, api):
    Secrets(data_dir=str(data)).set("TOKEN", VALUE, hosts="good.test", header=BEARER)
    code = f"""
import socket
made = socket.create_connection(("good.test", {api.port}), 10)
made.sendall(b"SSH-2.0-x\\r\\n" * 10)
try:
    made.recv(1)
except ConnectionError:
    pass
"""
    rule = "another protocol to the host of a secret; a rule must name its port"
    for host, refused in (("good.test", True), (f"good.test:{api.port}", False)):
        box = boxed(network={"allow": [host], "secrets": ["TOKEN"]})
        done = box.exec(["python3", "-c", code])
        assert done.exit_code == 0, done
        assert (rule in {one.rule for one in box.network_log()}) is refused


@pytest.mark.parametrize("before", ["%", "%25", "\\u00", "&#x"])
def test_a_text_before_a_value_does_not_reveal_it(held, api, before):
    api.forms = {
        form: lambda text, encode=encode: before + encode(text)
        for form, encode in FORMS.items()
        if "UTF-16" not in form
    }
    value = '3fab+Q/z"k&=t<Qx7vRt2mN4pL8s'
    box = held(value)
    shown = bodies(box, "good.test", api.port, [(f"/form?{quote(one)}", -1) for one in api.forms])
    for form, body in zip(api.forms, shown, strict=True):
        assert body.startswith("[" + before), form
        assert value[8:] not in body, form
        assert set(body) & set("QLN") == set(), (form, body)
