"""The forms in which a host may repeat a value, one for each row of the table in the guide."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import shlex
import textwrap
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable


def _hex_escapes(text: str, escape: Callable[[int], str], of: str = "<>&='\"/+\\") -> str:
    return "".join(escape(ord(one)) if one in of else one for one in text)


def _lower_percent(text: str) -> str:
    return re.sub("%..", lambda match: match[0].lower(), quote(text, safe=""))


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _go(text: str) -> str:
    """`encoding/json`."""
    return _hex_escapes(_json(text), lambda code: f"\\u{code:04x}", of="<>&")


def _dotnet(text: str) -> str:
    """`System.Text.Json`: everything but letters and digits in a query is an escape."""
    return _hex_escapes(text, lambda code: f"\\u{code:04X}")


def _csv(text: str) -> str:
    row = io.StringIO()
    csv.writer(row, quoting=csv.QUOTE_ALL).writerow([text])
    return row.getvalue().strip()[1:-1]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _url_base64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


FORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it was sent": str,
    "URL": lambda text: quote(text, safe=""),
    "URL, lower case": _lower_percent,
    "URL that keeps `/` (`quote` of Python)": quote,
    "URL that keeps `'` (`encodeURIComponent`)": lambda text: quote(text, safe="!'()*"),
    "form (a space is `+`)": quote_plus,
    "URL in a URL": lambda text: quote(quote(text, safe="")),
    "JSON": _json,
    "JSON of PHP": lambda text: _json(text).replace("/", "\\/"),
    "JSON of Go": _go,
    "JSON of .NET": _dotnet,
    "JSON in JSON": lambda text: _json(_json(text)),
    "HTML, named": html.escape,
    "HTML, decimal": lambda text: _hex_escapes(text, lambda code: f"&#{code};"),
    "HTML, decimal with a zero (PHP)": lambda text: _hex_escapes(
        text, lambda code: f"&#{code:03};"
    ),
    "HTML, hexadecimal": lambda text: _hex_escapes(text, lambda code: f"&#x{code:x};"),
    "HTML, hexadecimal, upper case": lambda text: _hex_escapes(text, lambda code: f"&#x{code:X};"),
    "HTML in HTML": lambda text: html.escape(html.escape(text)),
    "HTML in JSON of Go": lambda text: _go(html.escape(text)),
    "string of Python": lambda text: repr(text + "'\"")[1:-4],
    "string of JavaScript or C": lambda text: _hex_escapes(text, lambda code: f"\\x{code:02x}"),
    "shell, in quotes (`shlex.quote`)": lambda text: shlex.quote(text + " ")[1:-2],
    "shell, with backslashes (`printf %q`)": lambda text: re.sub(r"([^\w])", r"\\\1", text),
    'CSV (`""`)': _csv,
    "SQL or YAML (`''`)": lambda text: text.replace("'", "''"),
    "base64": _base64,
    "base64, one byte later": lambda text: _base64(":" + text),
    "base64, two bytes later (`Basic`)": lambda text: _base64("a:" + text),
    "base64 for URLs": _url_base64,
    "base64 in lines": lambda text: "\n".join(textwrap.wrap(_base64(text), 20)),
    "base64 in lines, in JSON": lambda text: "\\n".join(textwrap.wrap(_base64(text), 20)),
    "base64 in JSON of PHP": lambda text: _base64(text).replace("/", "\\/"),
    "base64 in a URL": lambda text: quote(_base64(text), safe=""),
    "base64 in HTML": lambda text: _hex_escapes(_base64(text), lambda code: f"&#x{code:X};"),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal, upper case": lambda text: text.encode().hex().upper(),
    "UTF-16, little-endian": lambda text: text.encode("utf-16-le").decode(),
    "UTF-16, big-endian": lambda text: text.encode("utf-16-be").decode(),
}
