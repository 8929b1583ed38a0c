"""Hostile archives that must be unpacked harmlessly, with the expected result."""

from __future__ import annotations

import gzip

from tests.images.hostile import Harmless, X, tar
from tests.images.tars import END, directory, file, hard_link, header, long, pax, symlink

HARMLESS: dict[str, Harmless] = {
    "an absolute name counts from the target": Harmless(
        lambda: tar(file(b"/etc/passwd", b"root")),
        {"etc": "directory", "etc/passwd": "file root"},
    ),
    "an absolute name with many slashes": Harmless(
        lambda: tar(file(b"////tmp//.//f", b"!")), {"tmp": "directory", "tmp/f": "file !"}
    ),
    "symlinks may point anywhere": Harmless(
        lambda: tar(symlink(b"a", b"/"), symlink(b"b", b"../../.."), symlink(b"c", b"c")),
        {"a": "-> /", "b": "-> ../../..", "c": "-> c"},
    ),
    "a file in the place of a symlink does not follow it": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), file(b"a", b"inside")),
        {"a": "file inside"},
    ),
    "a directory in the place of a symlink does not follow it": Harmless(
        lambda: tar(symlink(b"a", b"../canary"), directory(b"a", mode=0o700), file(b"a/f", b"!")),
        {"a": "directory", "a/f": "file !"},
    ),
    "a symlink in the place of a directory removes only the directory": Harmless(
        lambda: tar(
            file(b"a/b/f", b"!"),
            symlink(b"a/b/up", b"../../../canary"),
            symlink(b"a", b"../canary"),
        ),
        {"a": "-> ../canary"},
    ),
    "a hard link to a symlink is another name of the symlink": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), hard_link(b"h", b"a")),
        {"a": "-> ../canary/kept", "h": "-> ../canary/kept"},
    ),
    "a file through a hard link to a symlink replaces the name": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), hard_link(b"h", b"a"), file(b"h", b"!")),
        {"a": "-> ../canary/kept", "h": "file !"},
    ),
    "a file in the place of a hard link leaves the other name": Harmless(
        lambda: tar(X, hard_link(b"h", b"x"), file(b"h", b"other")),
        {"h": "file other", "x": "file inside"},
    ),
    "a hard link to itself": Harmless(lambda: tar(X, hard_link(b"x", b"x")), {"x": "file inside"}),
    "a file, then a directory, then a file": Harmless(
        lambda: tar(X, directory(b"x"), file(b"x/y", b"1"), file(b"x", b"again")),
        {"x": "file again"},
    ),
    "a directory twice keeps what is in it": Harmless(
        lambda: tar(directory(b"d"), file(b"d/f", b"!"), directory(b"d", mode=0o711)),
        {"d": "directory", "d/f": "file !"},
        modes={"d": 0o711},
    ),
    "devices and fifos are left out": Harmless(
        lambda: tar(
            header(b"null", flag=b"3", tail=b""),
            header(b"sda", flag=b"4"),
            header(b"fifo", flag=b"6"),
            header(b"dev/zero", flag=b"3"),
            X,
        ),
        {"x": "file inside"},
        skipped=4,
    ),
    "set-id bits are cleared, sticky ones are not": Harmless(
        lambda: tar(
            file(b"su", b"!", mode=0o6755),
            directory(b"sg", mode=0o2775),
            file(b"sg/f", b"!", mode=0o2644),
            directory(b"tmp", mode=0o1777),
        ),
        {"su": "file !", "sg": "directory", "sg/f": "file !", "tmp": "directory"},
        modes={"su": 0o755, "sg": 0o775, "sg/f": 0o644, "tmp": 0o1777},
    ),
    "a file that its owner may not write": Harmless(
        lambda: tar(pax((b"SCHILY.xattr.user.a", b"v")), file(b"ro", b"!", mode=0o400)),
        {"ro": "file !"},
        modes={"ro": 0o400},
    ),
    "links and directories have no body": Harmless(
        lambda: tar(
            X,
            directory(b"d", size=4096),
            symlink(b"s", b"x", size=512),
            hard_link(b"h", b"x", size=6),
        ),
        {"d": "directory", "h": "file inside", "s": "-> x", "x": "file inside"},
    ),
    "names that are no text": Harmless(
        lambda: tar(
            file(b"\xff\xfe", b"1"),
            file(b"a\nb", b"2"),
            file(b"-rf", b"3"),
            file(b"\x1b[31m", b"4"),
        ),
        {"\udcff\udcfe": "file 1", "a\nb": "file 2", "-rf": "file 3", "\x1b[31m": "file 4"},
    ),
    "the longest name there can be": Harmless(
        lambda: tar(long(b"n" * 255), X), {"n" * 255: "file inside"}
    ),
    "whiteouts": Harmless(
        lambda: tar(file(b"d/.wh.gone"), file(b".wh....", b"with content"), directory(b".wh.e")),
        {"...": "whiteout", "d": "directory", "d/gone": "whiteout", "e": "whiteout"},
    ),
    "a whiteout never hides its own layer": Harmless(
        lambda: tar(file(b".wh.a"), file(b"a", b"1"), file(b"b", b"2"), file(b".wh.b")),
        {"a": "file 1", "b": "file 2"},
    ),
    "the same whiteout twice": Harmless(
        lambda: tar(file(b".wh.a"), file(b".wh.a")), {"a": "whiteout"}
    ),
    "bookkeeping of other stores": Harmless(
        lambda: tar(
            file(b".wh..wh.aufs"), directory(b".wh..wh.plnk"), file(b".wh..wh.plnk/1.2", b"!"), X
        ),
        {"x": "file inside"},
    ),
    "something behind the end marker": Harmless(
        lambda: tar(X) + b"garbage" * 1000, {"x": "file inside"}
    ),
    "an archive with nothing in it": Harmless(lambda: END, {}),
    "a lone zero block": Harmless(lambda: X + bytes(512), {"x": "file inside"}),
    "a global header that says nothing of names": Harmless(
        lambda: tar(pax((b"comment", b"abc"), flag=b"g"), X), {"x": "file inside"}
    ),
    "members of gzip, one after the other": Harmless(
        lambda: gzip.compress(X) + gzip.compress(END) + bytes(700), {"x": "file inside"}
    ),
}
