"""Listings: sorted, paged, complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import FileNotFound, InvalidRequest, NotADirectory
from sandkasten_runtime.wire.messages import FileStat, to_bytes_json

if TYPE_CHECKING:
    from sandkasten_contract.box import Box


async def everything(box: Box, path: str = ".", **fields: object) -> list[list[FileStat]]:
    """Return all pages of a listing."""
    pages: list[list[FileStat]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": to_bytes_json(cursor)}
        page = await box.list(path, **fields, **more)
        pages.append(list(page.entries))
        if page.next is None:
            return pages
        cursor = page.next


async def test_an_empty_directory_lists_nothing(box: Box):
    page = await box.list()
    assert (page.entries, page.next) == ((), None)


async def test_entries_are_sorted_by_the_bytes_of_their_names(box: Box):
    for name in ["b", "a", "B", "é", "a.b", "a0"]:
        await box.write(name, b"")
    names = [entry.name for entry in (await box.list()).entries]
    assert names == sorted(names, key=str.encode)
    assert set(names) == {"b", "a", "B", "é", "a.b", "a0"}


async def test_hidden_files_and_links_are_listed_and_links_not_followed(box: Box):
    await box.run("touch .hidden; mkdir d; touch d/f; ln -s d link")
    entries = (await box.list(recursive=True)).entries
    assert [(entry.name, entry.type) for entry in entries] == [
        (".hidden", "file"),
        ("d", "directory"),
        ("f", "file"),
        ("link", "symlink"),
    ]
    assert entries[3].target == "d"


async def test_without_recursion_only_the_directory_itself_is_listed(box: Box):
    await box.write("d/e/f", b"")
    assert [entry.path for entry in (await box.list()).entries] == [box.path("d")]
    assert [entry.path for entry in (await box.list("d")).entries] == [box.path("d/e")]


async def test_a_directory_is_listed_before_its_contents(box: Box):
    for name in ["a/x", "a/b/y", "a.txt", "a-b", "c"]:
        await box.write(name, b"")
    paths = [entry.path for entry in (await box.list(recursive=True)).entries]
    assert set(paths) == {
        box.path(name) for name in ["a", "a/x", "a/b", "a/b/y", "a.txt", "a-b", "c"]
    }
    assert len(paths) == 7
    for path in paths:
        parent = path.rsplit("/", 1)[0]
        if parent != box.workspace:
            assert paths.index(parent) < paths.index(path)


@pytest.mark.parametrize("recursive", [False, True])
async def test_pages_hold_every_entry_exactly_once(box: Box, recursive: bool):
    await box.run("mkdir a b; for i in $(seq 40); do touch a/$i b/$i $i; done")
    whole = [entry.path for entry in (await box.list(recursive=recursive)).entries]
    pages = await everything(box, recursive=recursive, limit=7)
    assert [entry.path for page in pages for entry in page] == whole
    assert all(len(page) == 7 for page in pages[:-1])
    assert len(whole) == len(set(whole)) == (122 if recursive else 42)


async def test_a_permanent_entry_is_listed_once_while_others_change(box: Box):
    for number in range(30):
        await box.write(f"stay-{number:02}", b"")
        await box.write(f"gone-{number:02}", b"")
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    number = 0
    while True:
        page = await box.list(limit=5, **cursor)
        seen += [entry.name for entry in page.entries]
        if page.next is None:
            break
        cursor = {"cursor": to_bytes_json(page.next)}
        await box.remove(f"gone-{number:02}")
        await box.write(f"new-{number:02}", b"")
        number += 1
    stayed = [name for name in seen if name.startswith("stay-")]
    assert stayed == [f"stay-{number:02}" for number in range(30)]
    assert len(seen) == len(set(seen))


@pytest.mark.aspect("paging")
async def test_a_page_ends_before_its_answer_grows_too_large(box: Box):
    names = [f"{number:04}" + "n" * 240 for number in range(1500)]
    for name in names:
        await box.write(f"d/{name}", b"")
    pages = await everything(box, "d", limit=5000)
    assert [entry.name for page in pages for entry in page] == names


async def test_a_page_limit_above_the_maximum_is_reduced_and_not_refused(box: Box):
    await box.write("f", b"")
    assert len((await box.list(limit=1_000_000)).entries) == 1


async def test_listing_a_path_that_is_not_a_directory_is_refused(box: Box):
    await box.write("f", b"")
    with pytest.raises(NotADirectory):
        await box.list("f")
    with pytest.raises(FileNotFound):
        await box.list("nope")
    with pytest.raises(InvalidRequest):
        await box.list(limit="many")


async def test_a_link_to_a_directory_is_listed_when_named(box: Box):
    await box.write("d/f", b"")
    await box.run("ln -s d link")
    assert [entry.path for entry in (await box.list("link")).entries] == [box.path("d/f")]
