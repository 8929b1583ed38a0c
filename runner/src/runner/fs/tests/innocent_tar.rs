//! Archives that look like hostile ones and are valid, and what is left of a cancelled one.

use super::tars::{archive, assert_guarded, extension, file, guarded, header, link, octal, pax};
use super::Recorder;
use crate::wire::handler::Step;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn valid_archives_similar_to_hostile_ones_are_unpacked() {
    let long = "n".repeat(200);
    let cases: Vec<(&str, Vec<u8>, &str, &[u8])> = vec![
        (
            "dots in a name",
            archive(&[file("..a/...", b"1")]),
            "..a/...",
            b"1",
        ),
        ("newline", archive(&[file("a\nb", b"2")]), "a\nb", b"2"),
        ("leading dash", archive(&[file("-rf", b"3")]), "-rf", b"3"),
        (
            "twice the same name",
            archive(&[file("a", b"old"), file("a", b"new")]),
            "a",
            b"new",
        ),
        (
            "missing parents",
            archive(&[file("x/y/z", b"4")]),
            "x/y/z",
            b"4",
        ),
        (
            "symlink inside",
            archive(&[file("t", b"5"), link("d/s", b'2', "../t")]),
            "d/s",
            b"5",
        ),
        (
            "hard link inside",
            archive(&[file("t", b"6"), link("h", b'1', "./t")]),
            "h",
            b"6",
        ),
        (
            "hard link twice",
            archive(&[file("t", b"6"), link("h", b'1', "t"), link("h", b'1', "t")]),
            "h",
            b"6",
        ),
        (
            "file over a symlink",
            archive(&[link("s", b'2', "x"), file("s", b"7")]),
            "s",
            b"7",
        ),
        (
            "old directory form",
            archive(&[
                header(b"d/", 0, &octal(0), b"", b"0000755"),
                file("d/f", b"8"),
            ]),
            "d/f",
            b"8",
        ),
        (
            "long name",
            archive(&[extension(b'L', &[b'n'; 200]), file("short", b"9")]),
            &long,
            b"9",
        ),
        (
            "global comment",
            archive(&[extension(b'g', b"13 comment=x\n"), file("a", b"10")]),
            "a",
            b"10",
        ),
        (
            "pax size",
            archive(&[pax(&[("size", "2")]), file("a", b"11")]),
            "a",
            b"11",
        ),
        (
            "spaces in numbers",
            archive(&[header(b"a", b'0', b"        0 ", b"", b" 644 ")]),
            "a",
            b"",
        ),
        (
            "directory of the type of files, and a global time",
            archive(&[
                extension(b'g', b"11 mtime=5\n"),
                header(b"d/", b'0', &octal(0), b"", b"0000755"),
                file("d/f", b"14"),
            ]),
            "d/f",
            b"14",
        ),
        (
            "volume label",
            archive(&[
                header(b"v", b'V', &octal(0), b"", b"0000644"),
                file("a", b"12"),
            ]),
            "a",
            b"12",
        ),
        (
            "after the end",
            [archive(&[file("a", b"13")]), vec![7; 5000]].concat(),
            "a",
            b"13",
        ),
    ];
    for (what, bytes, name, content) in cases {
        for piece in [1, 511, 512, 513, 1 << 20] {
            let place = guarded();
            let out = place.run_with("fs.tar_in", &json!({ "path": "in" }), &bytes, piece);
            out.outcome
                .unwrap()
                .unwrap_or_else(|failure| panic!("{}: {:?}", what, failure));
            assert_eq!(out.granted, bytes.len() as u64);
            assert_eq!(
                fs::read(place.path("in").join(name)).unwrap(),
                content,
                "{}",
                what
            );
            assert_guarded(&place);
        }
    }
}

#[test]
fn set_id_bits_are_dropped_and_closed_directories_get_their_members() {
    super::as_user(guarded(), |place| {
        let bytes = archive(&[
            header(b"suid", b'0', &octal(0), b"", b"0006755"),
            header(b"shut", b'5', &octal(0), b"", b"0007500"),
            file("shut/inside", b"x"),
            header(b"closed/", b'5', &octal(0), b"", b"0000000"),
            file("closed/inside", b"x"),
        ]);
        let out = place.run_with("fs.tar_in", &json!({ "path": "mine" }), &bytes, 1000);
        out.outcome.unwrap().unwrap();
        let mode =
            |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode("mine/suid"), mode("mine/shut"), mode("mine/closed")),
            (0o755, 0o500, 0o000)
        );
        assert_eq!(place.get("mine/shut/inside"), b"x");
    });
}

#[test]
fn cancelled_archive_leaves_complete_members_and_no_temporary_file() {
    let place = guarded();
    let bytes = archive(&[file("whole", b"1"), file("half", &[2; 5000])]);
    let mut handler = place.open("fs.tar_in", &json!({ "path": "in" })).unwrap();
    let mut out = Recorder::new();
    let mut step = handler.data(&bytes[..3000], &mut out).unwrap();
    while step == Step::Again {
        step = handler.step(&mut out).unwrap();
    }
    drop(handler);
    assert_eq!(place.names("in"), ["whole"]);
    assert_guarded(&place);
}
