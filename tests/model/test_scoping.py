"""Session keys: different keys never have equal strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidRequest
from sandkasten.model.runs.session_key import SessionKey, parse_session_key

part = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
key = st.builds(SessionKey, st.sampled_from(["workflow", "agent"]), part, part)


@given(key)
def test_a_session_key_survives_a_round_trip(one):
    assert parse_session_key(str(one)) == one


@given(key, key)
def test_different_session_keys_have_different_strings(one, other):
    assert (str(one) == str(other)) == (one == other)


def test_the_older_spelling_of_a_session_key_is_read():
    assert parse_session_key("workflow_run-7_sandbox") == SessionKey("workflow", "run-7")


@pytest.mark.parametrize(
    "text", ["", "a:b", "user:1:x", "workflow:1:a:b", "workflow::x", "agent:a b:x"]
)
def test_an_invalid_session_key_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse_session_key(text)


def test_underscores_do_not_make_session_keys_ambiguous():
    assert str(SessionKey("agent", "a_b", "c")) != str(SessionKey("agent", "a", "b_c"))
