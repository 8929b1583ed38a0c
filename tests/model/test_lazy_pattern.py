"""A lazy pattern is a compiled one from its first use on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandkasten.model import lazy_pattern


def test_it_matches_as_a_compiled_pattern_does():
    lazy: Any = lazy_pattern.compile(r"(?P<a>x+)|y", re.IGNORECASE)
    real = re.compile(r"(?P<a>x+)|y", re.IGNORECASE)
    assert lazy.groupindex == real.groupindex
    assert (lazy.pattern, lazy.flags) == (real.pattern, real.flags)
    for text in ("", "XX", "aY", "xxy"):
        for verb in ("match", "search", "fullmatch", "findall"):
            assert str(getattr(lazy, verb)(text)) == str(getattr(real, verb)(text))
        assert lazy.sub("z", text) == real.sub("z", text)


def test_it_is_compiled_at_its_first_use():
    broken = lazy_pattern.compile("(")
    for _ in range(2):
        with pytest.raises(re.error):
            broken.match("x")
