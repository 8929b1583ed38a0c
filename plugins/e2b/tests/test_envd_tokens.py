"""Access tokens and signatures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import InvalidRequest, Unauthorized
from sandkasten_e2b.envd_tokens import EnvdTokens, SignedPath
from sandkasten_e2b.sandbox_places import Spelling, check_user, real_path, user_in

# get_signature("/home/user/x", "read", "user", "token", …) of e2b 2.63.0, at Unix time 1700000000.
SIGNED = SignedPath(
    "/home/user/x", "read", "user", "v1_DlnZyJgpizqDARuG33V08liOjktFYUPyaPOjoEFATsA", "1700000600"
)


def test_a_token_is_of_one_sandbox_and_one_key():
    tokens = EnvdTokens(b"k" * 32)
    token = tokens.token("sbx_1")
    assert tokens.is_valid("sbx_1", token)
    assert not tokens.is_valid("sbx_2", token)
    assert not EnvdTokens(b"o" * 32).is_valid("sbx_1", token)
    for other in ("", token[:-1], token + "0", token.upper(), "é" * 64):
        assert not tokens.is_valid("sbx_1", other)


def test_the_sdks_signature_is_accepted_and_no_other():
    SIGNED.check(1_700_000_000)
    assert SIGNED.is_signed_with("token")
    assert not SIGNED.is_signed_with("other")
    for changed in (
        replace(SIGNED, path="/home/user/y"),
        replace(SIGNED, operation="write"),
        replace(SIGNED, user=""),
        replace(SIGNED, expiration="1700000601"),
        replace(SIGNED, expiration=None),
    ):
        assert not changed.is_signed_with("token")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expiration": "1699999999"}, "signature is already expired"),
        ({"expiration": "-1"}, "invalid signature"),
        ({"expiration": "1e9"}, "invalid signature"),
        ({"expiration": "9" * 400}, "invalid signature"),
        ({"signature": ""}, "invalid signature"),
        ({"signature": "v1_" + "é" * 43}, "invalid signature"),
    ],
)
def test_a_malformed_or_expired_signature_is_refused(changes, message):
    with pytest.raises(Unauthorized) as caught:
        replace(SIGNED, **changes).check(1_700_000_000)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("asked", "real", "shown"),
    [
        ("/home/user", "/workspace", "/home/user"),
        ("/home/user/a", "/workspace/a", "/home/user/a"),
        ("~/a", "/workspace/a", "/home/user/a"),
        ("/home/users/a", "/home/users/a", "/home/users/a"),
        ("a", "a", "a"),
        ("/tmp/a", "/tmp/a", "/tmp/a"),
        ("", "/workspace", "/home/user"),
    ],
)
def test_the_home_of_e2b_is_the_workspace(asked, real, shown):
    assert real_path(asked) == real
    assert Spelling.of(asked).shown(real) == shown


def test_users_are_the_one_user_of_the_sandbox():
    assert user_in("Basic dXNlcjo=") == "user"
    assert user_in(None) == user_in("Bearer x") == ""
    for name in (None, "", "user", "root"):
        check_user(name)
    with pytest.raises(Unauthorized):
        check_user("alice")
    with pytest.raises(InvalidRequest):
        user_in("Basic ***")
