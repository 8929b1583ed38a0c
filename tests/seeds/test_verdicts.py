"""Every code block of the source documents is run, or says why not."""

from __future__ import annotations

import pytest

from tests.seeds.documents import (
    HERE,
    RUN_BY,
    VERDICTS,
    Block,
    all_blocks,
    documents,
    exists,
)

BLOCKS = all_blocks()


def test_all_five_documents_are_here_with_all_their_blocks():
    assert {one.id: len(one.blocks) for one in documents()} == {
        "000": 13,
        "001": 13,
        "002": 30,
        "003": 19,
        "004": 10,
    }
    for document in documents():
        assert [one.number for one in document.blocks] == list(range(1, len(document.blocks) + 1))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda one: one.id)
def test_a_block_has_a_verdict_and_what_it_needs(block: Block):
    assert block.verdict in VERDICTS
    assert block.text.strip()
    if block.verdict == "runs":
        assert block.kind in RUN_BY
        assert (HERE / RUN_BY[block.kind]).exists()
    else:
        assert block.kind is None
        assert block.reason
    assert block.test is None or exists(block.test), block.test


def test_a_missing_test_is_reported():
    assert exists("tests/seeds/test_verdicts.py::test_a_missing_test_is_reported")
    assert not exists("tests/seeds/test_verdicts.py::test_nothing")
    assert not exists("tests/seeds/test_nothing.py")
