"""Text of users for logs, traces and audit records: shortened, without what looks like a secret.

Finds secrets by their form: keys of well-known services, private keys, tokens, passwords in URLs,
and values of variables whose names announce a secret. A secret of another form is not found. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from sandkasten.model import lazy_pattern

GONE: Final = "[redacted]"
# The head of a text is searched with this much more than is shown, so that a secret at the cut is
# found too.
_BEYOND: Final = 512

_SECRETS: Final = lazy_pattern.compile(
    # A private key, also one that is cut off.
    r"(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,8192}?(?:-----END [A-Z ]{0,40}-----|\Z))"
    # Tokens with a distinctive form: JWT, ours, OpenAI, Anthropic, GitHub, GitLab, Slack, AWS,
    # Google, npm, PyPI, Hugging Face, E2B, Stripe.
    r"|(?P<token>\beyJ[\w-]{8,512}\.[\w-]{4,4096}\.[\w-]{0,4096}"
    r"|\b(?:sk|pk|rk)[-_][\w-]{16,256}|\bgh[pousr]_\w{20,255}|\bgithub_pat_\w{20,255}"
    r"|\bglpat-[\w-]{16,255}|\bxox[abeoprs]-[\w-]{10,255}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bAIza[\w-]{30,60}|\bnpm_\w{30,60}|\bpypi-[\w-]{50,255}|\bhf_\w{20,60}|\be2b_\w{20,512})"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,4096}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,128}:)[^\s/@]{1,256}(?=@)"
    r"|(?P<name>(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|auth(?:orization)?)[\w.-]{0,32}[\"']?\s{0,4}[=:]\s{0,4}"
    r"(?:(?:bearer|basic)\s{1,4})?)"
    r"(?:\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'|[^\s\"',;&|)]{1,4096})",
    re.IGNORECASE | re.DOTALL,
)


# Each alternative of the pattern contains one of these, whatever the case. Looking for them takes a
# hundredth of the time.
_SIGNS: Final = (
    *("private key", "eyj", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_"),
    *("ghs_", "ghr_", "github_pat_", "glpat-", "xox", "akia", "asia", "aiza", "npm_", "pypi-"),
    *(
        "hf_",
        "e2b_",
        "bearer",
        "basic",
        "://",
        "passw",
        "secret",
        "token",
        "key",
        "credential",
        "auth",
    ),
)


def redacted(text: str) -> str:
    """Return the text without what looks like a secret."""
    folded = text.lower() if text.isascii() else text.casefold()
    if not any(sign in folded for sign in _SIGNS):
        return text
    return _SECRETS.sub(_replaced, text)


def head_of(value: str | bytes, most: int) -> str | bytes:
    """Return the part of a value that `excerpt` reads."""
    return value[: most + _BEYOND]


def excerpt(value: str | bytes, most: int, length: int | None = None) -> str:
    """Return at most `most` characters from the beginning, without secrets.

    `length` is that of the whole, if the value is only its `head_of`.
    """
    length = len(value) if length is None else length
    head = head_of(value, most)
    text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    # What JSON or a collector could not take.
    text = text.encode("utf-8", "replace").decode()
    text = redacted(text)
    if len(text) <= most and len(head) == length:
        return text
    omitted = length - most
    return f"{text[:most]}… ({omitted} more)" if omitted > 0 else text[:most]


def _replaced(match: re.Match[str]) -> str:
    prefix = match["scheme"] or match["url"] or match["name"] or ""
    return prefix + GONE
