//! Archives that try to leave the directory, contradict themselves, or stop early. Each is refused for
//! its reason, and nothing outside is changed.

use super::tars::{
    archive, assert_guarded, code, directory, extension, file, guarded, header, link, octal, pax,
};
use super::Place;
use crate::fuzz::{archives::expanded, targets::inputs};
use serde_json::json;
use std::os::unix::fs::symlink;

#[test]
fn every_hostile_archive_is_refused_and_changes_nothing_outside() {
    let base256 = |bytes: [u8; 12]| bytes.to_vec();
    let huge = base256([
        0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ]);
    let past = base256([
        0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ]);
    let minus = base256([0xff; 12]);
    let mut bad_sum = file("a", b"x");
    bad_sum[0] = b'b';
    let mut short_body = file("a", &[1; 600]);
    short_body.truncate(700);
    let mut sparse_pax = pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]);
    sparse_pax.extend(file("a", b""));
    let mut sparse_directory = pax(&[("GNU.sparse.name", "b")]);
    sparse_directory.extend(directory("a"));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("parent", archive(&[file("../evil", b"x")]), "blocked"),
        (
            "parent within",
            archive(&[file("a/../../evil", b"x")]),
            "blocked",
        ),
        (
            "parent at the end",
            archive(&[directory("a/..")]),
            "blocked",
        ),
        (
            "parent behind a dot",
            archive(&[file("./../evil", b"x")]),
            "blocked",
        ),
        ("absolute", archive(&[file("/tmp/evil", b"x")]), "blocked"),
        (
            "absolute, doubled",
            archive(&[file("//evil", b"x")]),
            "blocked",
        ),
        (
            "pax parent",
            archive(&[pax(&[("path", "../evil")]), file("a", b"x")]),
            "blocked",
        ),
        (
            "pax absolute",
            archive(&[pax(&[("path", "/evil")]), file("a", b"x")]),
            "blocked",
        ),
        (
            "GNU long parent",
            archive(&[extension(b'L', b"../evil\0"), file("a", b"x")]),
            "blocked",
        ),
        (
            "symlink out",
            archive(&[link("s", b'2', "../out")]),
            "blocked",
        ),
        (
            "symlink absolute",
            archive(&[link("s", b'2', "/etc/passwd")]),
            "blocked",
        ),
        (
            "symlink by climbing",
            archive(&[link("a/s", b'2', "b/../../../out")]),
            "blocked",
        ),
        (
            "symlink long",
            archive(&[extension(b'K', b"../out\0"), link("s", b'2', "x")]),
            "blocked",
        ),
        (
            "through its own symlink",
            archive(&[directory("d"), link("s", b'2', "d"), file("s/evil", b"x")]),
            "blocked",
        ),
        (
            "two links that add up",
            archive(&[
                directory("d"),
                link("d/a", b'2', ".."),
                link("d/b", b'2', "a/../../out"),
            ]),
            "blocked",
        ),
        (
            "directory over its symlink",
            archive(&[directory("d"), link("s", b'2', "d"), directory("s")]),
            "blocked",
        ),
        (
            "hard link out",
            archive(&[link("h", b'1', "../out/canary")]),
            "blocked",
        ),
        (
            "hard link absolute",
            archive(&[link("h", b'1', "/etc/passwd")]),
            "blocked",
        ),
        (
            "hard link to nothing",
            archive(&[link("h", b'1', "none")]),
            "not_found",
        ),
        (
            "hard link through a symlink",
            archive(&[
                directory("d"),
                file("d/f", b""),
                link("s", b'2', "d"),
                link("h", b'1', "s/f"),
            ]),
            "blocked",
        ),
        (
            "hard link to a symlink",
            archive(&[
                directory("d"),
                link("d/s", b'2', "../x"),
                link("h", b'1', "d/s"),
            ]),
            "blocked",
        ),
        (
            "hard link to a directory",
            archive(&[directory("d"), link("h", b'1', "d")]),
            "blocked",
        ),
        (
            "pax hard link out",
            archive(&[pax(&[("linkpath", "../out/canary")]), link("h", b'1', "x")]),
            "blocked",
        ),
        (
            "character device",
            archive(&[header(b"dev", b'3', &octal(0), b"", b"0000666")]),
            "blocked",
        ),
        (
            "block device",
            archive(&[header(b"dev", b'4', &octal(0), b"", b"0000666")]),
            "blocked",
        ),
        (
            "fifo",
            archive(&[header(b"fifo", b'6', &octal(0), b"", b"0000666")]),
            "blocked",
        ),
        ("bad checksum", archive(&[bad_sum]), "invalid"),
        (
            "no number",
            archive(&[header(b"a", b'0', b"0000000000z", b"", b"0000644")]),
            "invalid",
        ),
        (
            "negative size",
            archive(&[header(b"a", b'0', &minus, b"", b"0000644")]),
            "invalid",
        ),
        (
            "size past 63 bits",
            archive(&[header(b"a", b'0', &past, b"", b"0000644")]),
            "invalid",
        ),
        (
            "huge size claim",
            archive(&[header(b"a", b'0', &huge, b"", b"0000644")]),
            "invalid",
        ),
        (
            "pax huge size claim",
            archive(&[pax(&[("size", "9223372036854775807")]), file("a", b"")]),
            "invalid",
        ),
        (
            "pax size past 63 bits",
            archive(&[pax(&[("size", "9223372036854775808")]), file("a", b"")]),
            "invalid",
        ),
        (
            "pax negative size",
            archive(&[pax(&[("size", "-1")]), file("a", b"")]),
            "invalid",
        ),
        ("stops in a body", short_body, "invalid"),
        (
            "stops in a header",
            file("a", b"")[..300].to_vec(),
            "invalid",
        ),
        ("stops without its end", file("a", b"x"), "invalid"),
        (
            "stops after an extension",
            extension(b'L', b"name\0"),
            "invalid",
        ),
        (
            "ends after an extension",
            archive(&[extension(b'L', b"name\0")]),
            "invalid",
        ),
        ("empty", Vec::new(), "invalid"),
        (
            "noise",
            (0..4096u32).map(|i| (i * 31 % 255) as u8 + 1).collect(),
            "invalid",
        ),
        (
            "pax bomb",
            archive(&[header(b"x", b'x', &octal(2 << 20), b"", b"0000644")]),
            "invalid",
        ),
        (
            "long name bomb",
            archive(&[header(b"x", b'L', &octal(8 << 30), b"", b"0000644")]),
            "invalid",
        ),
        (
            "extensions without end",
            archive(&vec![pax(&[("comment", "x")]); 50]),
            "invalid",
        ),
        (
            "pax length lies",
            archive(&[extension(b'x', b"99 path=a\n"), file("a", b"")]),
            "invalid",
        ),
        (
            "pax length zero",
            archive(&[extension(b'x', b"0 path=a\n"), file("a", b"")]),
            "invalid",
        ),
        (
            "pax without equals",
            archive(&[extension(b'x', b"8 patha\n"), file("a", b"")]),
            "invalid",
        ),
        (
            "pax name with NUL",
            archive(&[extension(b'x', b"11 path=a\0b\n"), file("a", b"")]),
            "invalid",
        ),
        (
            "pax empty name",
            archive(&[pax(&[("path", "")]), file("a", b"")]),
            "invalid",
        ),
        ("pax sparse", archive(&[sparse_pax]), "unsupported"),
        (
            "pax sparse directory",
            archive(&[sparse_directory]),
            "unsupported",
        ),
        (
            "GNU sparse",
            archive(&[header(b"a", b'S', &octal(0), b"", b"0000644")]),
            "unsupported",
        ),
        (
            "multi-volume",
            archive(&[header(b"a", b'M', &octal(0), b"", b"0000644")]),
            "unsupported",
        ),
        (
            "unknown type",
            archive(&[header(b"a", b'Z', &octal(0), b"", b"0000644")]),
            "unsupported",
        ),
        (
            "global path",
            archive(&[extension(b'g', b"13 path=evil\n"), file("a", b"")]),
            "unsupported",
        ),
        (
            "directory with a body",
            archive(&[
                header(b"d", b'5', &octal(512), b"", b"0000755"),
                vec![0; 512],
            ]),
            "invalid",
        ),
        (
            "symlink with a body",
            archive(&[header(b"s", b'2', &octal(512), b"x", b"0000755")]),
            "invalid",
        ),
        (
            "symlink to nothing",
            archive(&[link("s", b'2', "")]),
            "invalid",
        ),
        ("no name", archive(&[file("", b"x")]), "invalid"),
        ("a file called dot", archive(&[file("./", b"x")]), "invalid"),
        (
            "name too long",
            archive(&[extension(b'L', &[b'n'; 300]), file("a", b"")]),
            "name_too_long",
        ),
        (
            "file over a directory",
            archive(&[directory("d"), file("d", b"")]),
            "is_directory",
        ),
        (
            "directory over a file",
            archive(&[file("f", b""), directory("f")]),
            "not_directory",
        ),
        (
            "below a file",
            archive(&[file("f", b""), file("f/g", b"")]),
            "not_directory",
        ),
    ];
    assert!(cases.len() >= 25);
    for (what, bytes, expected) in cases {
        let place = guarded();
        assert_eq!(code(&place, &bytes), expected, "{}", what);
        assert_guarded(&place);
    }
}

#[test]
fn existing_entries_cannot_lead_a_member_outside() {
    let place = guarded();
    symlink("../out", place.path("in/way")).unwrap();
    symlink("../out/canary", place.path("in/file")).unwrap();
    assert_eq!(
        code(&place, &archive(&[file("way/canary", b"dead")])),
        "blocked"
    );
    assert_eq!(code(&place, &archive(&[directory("way/new")])), "blocked");
    assert_eq!(code(&place, &archive(&[directory("way")])), "blocked");
    assert_eq!(
        code(&place, &archive(&[link("h", b'1', "way/canary")])),
        "blocked"
    );
    assert_eq!(
        code(&place, &archive(&[link("h", b'1', "file")])),
        "blocked"
    );
    // A file replaces a symlink; it is not written through it.
    assert_eq!(code(&place, &archive(&[file("file", b"mine")])), "ok");
    assert_eq!(place.get("in/file"), b"mine");
    assert_guarded(&place);
}

#[test]
fn limits_are_checked_before_anything_is_written() {
    let place = guarded();
    let bytes = archive(&[file("a", &[1; 100]), file("b", &[2; 100])]);
    for (limits, expected) in [
        (json!({ "path": "in", "max_bytes": 199 }), Err("too_large")),
        (json!({ "path": "in", "max_entries": 1 }), Err("too_large")),
        (
            json!({ "path": "in", "max_bytes": 200, "max_entries": 2 }),
            Ok(()),
        ),
    ] {
        let out = place.run_with("fs.tar_in", &limits, &bytes, 4096);
        assert_eq!(
            out.outcome
                .unwrap()
                .map(drop)
                .map_err(|failure| failure.code),
            expected
        );
    }
    let claim = archive(&[header(b"big", b'0', b"77777777777", b"", b"0000644")]);
    let out = place.run_with(
        "fs.tar_in",
        &json!({ "path": "in", "max_bytes": 1 << 20 }),
        &claim,
        512,
    );
    assert_eq!(out.outcome.unwrap().unwrap_err().code, "too_large");
    assert_guarded(&place);
}

#[test]
fn denied_member_ends_the_archive() {
    let place = guarded();
    let bytes = archive(&[file("fine", b""), file("no/x", b""), file("late", b"")]);
    let request = json!({ "path": "in", "deny": [place.text("in/no")] });
    let out = place.run_with("fs.tar_in", &request, &bytes, 4096);
    assert_eq!(out.outcome.unwrap().unwrap_err().code, "blocked");
    assert_eq!(place.names("in"), ["fine"]);
}

#[test]
fn stored_inputs_of_the_fuzzer_neither_fail_inside_nor_leave_the_directory() {
    let place = Place::new();
    place.put("out/canary", b"alive");
    let (mut good, mut bad) = (0, 0);
    for (path, data) in ["tar", "layer"].into_iter().flat_map(inputs) {
        let archive = expanded(&data);
        let out = place.run_with("fs.tar_in", &json!({ "path": "in" }), &archive, 700);
        match out.outcome.unwrap() {
            Ok(_) => good += 1,
            Err(failure) => {
                let inside = ["internal", "io"].contains(&failure.code);
                assert!(!inside, "{}: {:?}", path.display(), failure);
                bad += 1;
            }
        }
        assert_eq!(place.names("out"), ["canary"], "{}", path.display());
        assert!(!place
            .names("")
            .iter()
            .any(|name| !["in", "out"].contains(&&name[..])));
        if place.path("in").exists() {
            let temporary = |name: &String| name.starts_with(".sandkasten");
            assert!(
                !place.names("in").iter().any(temporary),
                "{}",
                path.display()
            );
            place.ok("fs.remove", json!({ "path": "in", "recursive": true }));
        }
    }
    assert!(good > 0 && bad > 0, "{} good, {} bad", good, bad);
}
