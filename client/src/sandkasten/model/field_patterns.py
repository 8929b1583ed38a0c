"""The forms of names and strings in requests, each stated once.

The rules that refuse a value compile them with `form`; the OpenAPI document shows them with
`shown_form`. Only syntax that Python and ECMAScript read alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.model import lazy_pattern

if TYPE_CHECKING:
    import re

ENV_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,255}"
LABEL_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
HOSTNAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
SHELL_NAME: Final = r"[A-Za-z0-9_.-]{1,64}"
_ACCOUNT_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
ACCOUNT: Final = rf"{_ACCOUNT_NAME}(?::{_ACCOUNT_NAME})?"
"""A user with or without a group, as in USER of a Dockerfile."""
TENANT: Final = r"[a-z0-9][a-z0-9-]{0,31}"
SANDBOX_ID: Final = r"sbx_[0-9a-f]{16,64}"
EXEC_ID: Final = r"[A-Za-z0-9_-]{1,64}"
KEY_ID: Final = r"key_[0-9a-f]{12}"
SESSION_KEY_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
SNAPSHOT_ID: Final = r"snap_[0-9a-f]{16}"
# Neither a path nor an option, and the same on a file system that ignores case.
WORKSPACE_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
# An index, a vendor's own id, or a name of the Container Device Interface (nvidia.com/gpu=0).
DEVICE_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,127}"
# A number of GPUs up to 64, `all`, or one id.
GPUS: Final = rf"(?:[0-9]|[1-5][0-9]|6[0-4]|(?![0-9]+$){DEVICE_ID})"
CONTENT_TYPE: Final = (
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(?:;[\x20-\x7e]{0,200})?"
)

_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
IMAGE_NAME: Final = (
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)

# What a terminal acts on: control characters, marks that change the direction of text, and line
# separators.
_UNPRINTABLE: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
)
PRINTABLE: Final = rf"[^{_UNPRINTABLE}]"
_EDGE: Final = rf"[^{_UNPRINTABLE} ]"
HEADER_KEY: Final = rf"{_EDGE}(?:{PRINTABLE}{{0,254}}{_EDGE})?"
NO_NUL: Final = r"[^\x00]*"
# `..` is refused, not folded; see `model.files.sandbox_paths`.
PATH: Final = r"(?!(?:[^\x00]*/)?\.\.(?:/[^\x00]*)?$)[^\x00]+"
_KEY_PART: Final = rf"[^{_UNPRINTABLE}/\\]+"
FILE_KEY: Final = rf"(?!(?:[^\x00]*/)?\.\.?(?:/[^\x00]*)?$){_KEY_PART}(?:/{_KEY_PART})*"
# A file below the workspace.
WORKSPACE_MEMBER: Final = rf"(?:/work(?:space)?/)?(?!/)(?!(?:\.?/)*\.?$){PATH}"
GLOB: Final = rf"(?:/work(?:space)?/|\./)?(?!/)(?![^\x00]*(?://|/$)){PATH}"

_VERSION: Final = r"(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9][A-Za-z0-9._+!*-]*"
PIP_PACKAGE: Final = (
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?P<extras>\[[A-Za-z0-9._-]+(?:, *[A-Za-z0-9._-]+)*\])?"
    rf" *(?P<versions>{_VERSION}(?: *, *{_VERSION})*)?"
)
NPM_PACKAGE: Final = (
    r"(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-zA-Z0-9~][a-zA-Z0-9._~-]*)"
    r"(?:@(?P<range>[A-Za-z0-9^~<>=.*|+ -]+))?"
)

OCTAL: Final = r"0?o?[0-7]{1,4}"
BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
# Also in the URL-safe alphabet, with or without padding.
ANY_BASE64: Final = r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}(?:==)?|[A-Za-z0-9+/_-]{3}=?)?"

_NAMED_GROUP: Final = lazy_pattern.compile(r"\(\?P<[a-z]+>")


def form(pattern: str) -> re.Pattern[str]:
    """Compile a pattern so that `match` covers the whole string."""
    # Only here: no JSON text has an unpaired surrogate, and not every engine can name one.
    complete = pattern.replace(_UNPRINTABLE, _UNPRINTABLE + r"\ud800-\udfff")
    return lazy_pattern.compile(rf"(?:{complete})\Z")


def shown_form(pattern: str) -> str:
    """Return a pattern that covers the whole string, for a JSON Schema."""
    return f"^(?:{_NAMED_GROUP.sub('(?:', pattern)})$"
