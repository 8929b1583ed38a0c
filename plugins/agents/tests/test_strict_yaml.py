"""Strict YAML: what it means, and what is refused before it is interpreted."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidAgent, InvalidRequest, InvalidWorkflow
from sandkasten_agents.definitions import strict_yaml


def load(text, **options):
    return strict_yaml.load(text, **{"max_bytes": 64 * 1024, "what": "it", **options})


def refusal(text, **options) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        load(text, **options)
    return caught.value


def test_plain_scalars_have_their_json_meaning():
    text = (
        "a: 1\nb: -2.5\nc: true\nd: FALSE\ne: null\nf: ~\ng:\nh: 1e3\ni: .5\nj: 0x1f\nk: 0o17\n"
        'l: "1"\nm: [x, {y: 0}]\n'
    )
    assert load(text) == {
        "a": 1,
        "b": -2.5,
        "c": True,
        "d": False,
        "e": None,
        "f": None,
        "g": None,
        "h": 1000.0,
        "i": 0.5,
        "j": 31,
        "k": 15,
        "l": "1",
        "m": ["x", {"y": 0}],
    }


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    "word",
    ["yes", "no", "on", "off", "y", "2024-01-31", "2024-01-31 10:00:00", "12:30", "1_000", "0644"],
)
def test_yaml_1_1_surprises_stay_strings(word):
    assert load(f"a: {word}") == {"a": word}


def test_keys_are_strings_as_written():
    assert load("on: 1\n2: 3\ntrue: 4\n'<<': 5") == {"on": 1, "2": 3, "true": 4, "<<": 5}


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x: 1\na: &b 1", "it has a YAML anchor on line 2", 2),
        ("&b a: 1", "it has a YAML anchor on line 1", 1),
        ("a: *b", "it uses a YAML alias on line 1", 1),
        ("a: !!python/object/apply:os.system [id]", "it has a YAML tag on line 1", 1),
        ("a: !x 1", "it has a YAML tag on line 1", 1),
        ("a: ! 1", "it has a YAML tag on line 1", 1),
        ("!!set {a}", "it has a YAML tag on line 1", 1),
        ("a: 1\nb: 2\na: 3", "it has the key 'a' twice on line 3", 3),
        ("a: {b: 1, b: 2}", "it has the key 'b' twice on line 1", 1),
        ("a: 1\n<<: {b: 1}", "it uses a YAML merge key on line 2", 2),
        ("a: 1\n---\nb: 1", "it contains a second document on line 2", 2),
        ("%YAML 1.1\n---\na: 1", "it has a YAML directive on line 1", 1),
        ("? [a]\n: b", "it has a key that is not a string on line 1", 1),
        ("~: b", "it has an empty key on line 1", 1),
        ("a: .inf", "it contains .inf, which is not a number in JSON on line 1", 1),
        ("a: .nan", "it contains .nan, which is not a number in JSON on line 1", 1),
        ("a: 1e999", "it has a number that is too large on line 1", 1),
        ("a: " + "9" * 5000, "it has a number that is too long on line 1", 1),
        ("[" * 33, "it is nested more than 32 levels deep on line 1", 1),
        ("a: 1\nb: \x00", "it has the control character U+0000 on line 2", 2),
        ("a: \x1b[2J", "it has the control character U+001B on line 1", 1),
        ("a: \u2028b", "it has the control character U+2028 on line 1", 1),
        ("a: \ud800", "it has the control character U+D800 on line 1", 1),
    ],
)
def test_unsupported_yaml_features_are_refused_with_their_line(text, message, line):
    found = refusal(text)
    assert (found.message, found.details["line"]) == (message, line)
    assert found.hint


def test_broken_yaml_is_refused_with_its_line_in_the_surrounding_file():
    found = refusal("a: 1\nb: c: d\n", first_line=10)
    assert found.message.startswith("it is not valid YAML on line 11: mapping values are not")
    assert found.details == {"line": 11}


@pytest.mark.promise("P61")
def test_bytes_that_are_not_utf8_are_refused_with_their_offset():
    found = refusal(b"name: ok\nb: caf\xe9\n")
    assert found.message == "it is not UTF-8: byte 0xe9 at offset 15"
    assert found.details == {"offset": 15, "line": 2}


def test_utf8_with_a_byte_order_mark_is_read():
    assert load("\ufeffa: é".encode()) == {"a": "é"}


def test_the_caller_chooses_the_error_class():
    assert type(refusal_as(InvalidAgent)) is InvalidAgent
    assert type(refusal_as(InvalidWorkflow)) is InvalidWorkflow


def refusal_as(error):
    with pytest.raises(error) as caught:
        load("a: *b", error=error)
    return caught.value


def test_yaml_of_the_maximum_depth_is_read():
    assert load("[" * 32 + "]" * 32) is not None


def test_an_empty_document_is_null():
    assert load("") is None
    assert load("# only a comment\n") is None


@pytest.mark.promise("P61")
def test_a_large_text_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(yaml, "parse", lambda *_, **__: pytest.fail("it was parsed"))
    for text in ("a: " + "x" * 10_000_000, b"\xff" * 10_000_000, "é" * 40_000):
        found = refusal(text)
        assert found.message == "it is larger than 65536 bytes"


def test_an_alias_bomb_is_refused_at_its_first_anchor():
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert refusal("\n".join(layers)).message == "it has a YAML anchor on line 1"


def test_deep_nesting_is_refused_without_reading_it_all():
    # The library's parser alone takes a minute for this.
    assert refusal("[" * 60_000).message == "it is nested more than 32 levels deep on line 1"
    assert refusal("{a: " * 15_000).message == "it is nested more than 32 levels deep on line 1"


@pytest.mark.parametrize("loader", ["SafeLoader", "CSafeLoader"])
def test_both_parsers_of_the_library_give_the_same_result(monkeypatch, loader):
    monkeypatch.setattr(strict_yaml, "_LOADER", getattr(yaml, loader))
    assert load('a: yes\nb: "1"\nc:\nd: ""\ne: 1') == {
        "a": "yes",
        "b": "1",
        "c": None,
        "d": "",
        "e": 1,
    }
    assert refusal("<<: {a: 1}").message == "it uses a YAML merge key on line 1"
    assert refusal("a: *b").message == "it uses a YAML alias on line 1"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner),
    max_leaves=10,
)


@given(plain)
def test_json_is_valid_yaml(value):
    # Python writes 1e+16 with a sign that JSON and YAML both accept.
    text = json.dumps(value, ensure_ascii=True)
    assert load(re.sub(r"\\ud[0-9a-f]{3}", "x", text)) == json.loads(
        re.sub(r"\\ud[0-9a-f]{3}", "x", text)
    )


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_read_or_refused_with_a_typed_error(text):
    with suppress(InvalidRequest):
        json.dumps(load(text), allow_nan=False)


def test_the_error_about_a_tab_suggests_spaces():
    found = refusal("a:\n\tb: 1\n")
    assert (found.details, found.hint) == (
        {"line": 2},
        "indent with spaces: YAML does not allow tabs",
    )
    # A tab elsewhere is not the error.
    assert refusal("a: 'x\ty'\nb: c: d\n").hint == "check its indentation, colons and quotes"
