"""Text of users in traces: short, and without secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.model.redaction import GONE, excerpt, redacted


@pytest.mark.promise("P85")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("export OPENAI_API_KEY=abc123", "abc123"),
        ("curl -H 'Authorization: Bearer abcdefgh12345' x", "abcdefgh12345"),
        ('{"password": "two words", "b": 1}', "two words"),
        ("psql postgres://me:hunter2@db/x", "hunter2"),
        ("token='a b c'", "a b c"),
        ("print('sk-" + "a" * 40 + "')", "a" * 40),
        ("ghp_" + "a1" * 20, "a1a1"),
        ("AKIAABCDEFGHIJKLMNOP", "ABCDEFGH"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4", "SflKxw"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE and cut off", "MIIE"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text, secret):
    assert secret in text
    assert secret not in redacted(text)
    assert GONE in redacted(text)


@pytest.mark.parametrize(
    "text", ["print(1 + 1)", "cat /etc/passwd | wc", "https://example.org/a:b"]
)
def test_other_text_stays(text):
    assert redacted(text) == text


def test_a_secret_at_the_cut_is_found():
    text = "x" * 990 + " PASSWORD=" + "s" * 300
    assert "sss" not in excerpt(text, 1000)
    assert excerpt(text.encode(), 1000).endswith("more)")


@given(st.binary(max_size=3000) | st.text(max_size=3000), st.integers(0, 1000))
def test_an_excerpt_is_bounded_and_valid_text(value, most):
    shown = excerpt(value, most)
    assert len(shown) <= most + 40
    shown.encode()
