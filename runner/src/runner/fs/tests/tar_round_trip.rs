//! Archives exchanged between this runner and GNU tar.

use super::Place;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::process::Command;

fn fill(place: &Place) {
    let long = format!("tree/{}/{}", "d".repeat(120), "f".repeat(150));
    place.put(&long, b"long");
    place.put("tree/a\nb", b"newline");
    place.put("tree/-dash", b"dash");
    place.put("tree/sub/empty", b"");
    place.put("tree/block", &[1; 512]);
    place.put("tree/odd", &[2; 70_001]);
    symlink("../odd", place.path("tree/sub/link")).unwrap();
    symlink("x".repeat(180), place.path("tree/long-link")).unwrap();
    fs::set_permissions(place.path("tree/odd"), fs::Permissions::from_mode(0o751)).unwrap();
    super::make_fifo(&place.path("tree/fifo"));
}

fn same(place: &Place, one: &str, other: &str) {
    let answer = Command::new("diff")
        .args(["-r", "--no-dereference", "-x", "fifo"])
        .args([place.path(one), place.path(other)])
        .output()
        .unwrap();
    assert!(
        answer.status.success(),
        "{}",
        String::from_utf8_lossy(&answer.stdout)
    );
    let mode = |tree: &str| {
        fs::metadata(place.path(tree).join("odd"))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode(one), mode(other));
}

#[test]
fn archive_of_a_tree_unpacks_to_the_same_tree() {
    let place = Place::new();
    fill(&place);
    let out = place.run("fs.tar_out", json!({ "path": "tree" }));
    let summary = out.outcome.unwrap().unwrap();
    assert_eq!(
        summary,
        json!({ "entries": 11, "bytes": 4 + 7 + 4 + 512 + 70_001 })
    );
    assert_eq!(out.data.len() % 512, 0);
    let back = place.run_with("fs.tar_in", &json!({ "path": "new/copy" }), &out.data, 3000);
    assert_eq!(back.outcome.unwrap().unwrap(), summary);
    same(&place, "tree", "new/copy");
}

#[test]
fn gnu_tar_reads_our_archives() {
    let place = Place::new();
    fill(&place);
    let out = place.run("fs.tar_out", json!({ "path": "tree" }));
    place.put("a.tar", &out.data);
    fs::create_dir(place.path("copy")).unwrap();
    let answer = Command::new("tar")
        .arg("-xpf")
        .arg(place.path("a.tar"))
        .arg("-C")
        .arg(place.path("copy"))
        .output()
        .unwrap();
    assert!(
        answer.status.success(),
        "{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    assert_eq!(answer.stderr, b"");
    same(&place, "tree", "copy");
}

#[test]
fn every_format_of_gnu_tar_is_read() {
    for format in ["ustar", "gnu", "pax", "oldgnu", "v7"] {
        let place = Place::new();
        fill(&place);
        fs::remove_file(place.path("tree/fifo")).unwrap();
        if matches!(format, "ustar" | "v7") {
            // These formats cannot express such names.
            fs::remove_dir_all(place.path("tree").join("d".repeat(120))).unwrap();
            fs::remove_file(place.path("tree/long-link")).unwrap();
        }
        fs::hard_link(place.path("tree/odd"), place.path("tree/odd-twin")).unwrap();
        let answer = Command::new("tar")
            .arg(format!("--format={}", format))
            .arg("-cf")
            .arg(place.path("a.tar"))
            .arg("-C")
            .arg(place.path("tree"))
            .arg(".")
            .output()
            .unwrap();
        assert!(
            answer.status.success(),
            "{}",
            String::from_utf8_lossy(&answer.stderr)
        );
        let bytes = place.get("a.tar");
        let out = place.run_with("fs.tar_in", &json!({ "path": "copy" }), &bytes, 10_000);
        out.outcome
            .unwrap()
            .unwrap_or_else(|failure| panic!("{}: {:?}", format, failure));
        same(&place, "tree", "copy");
    }
}

#[test]
fn one_file_is_archived_under_its_base_name() {
    let place = Place::new();
    place.put("dir/one", b"1");
    symlink("dir/one", place.path("link")).unwrap();
    let out = place.run("fs.tar_out", json!({ "path": "dir/one" }));
    assert_eq!(
        out.outcome.unwrap().unwrap(),
        json!({ "entries": 1, "bytes": 1 })
    );
    assert_eq!(&out.data[..4], b"one\0");
    let out = place.run("fs.tar_out", json!({ "path": "link" }));
    assert_eq!(&out.data[..5], b"link\0");
    assert_eq!(
        place.code("fs.tar_out", json!({ "path": "/dev/null" })),
        "not_regular"
    );
}

#[test]
fn file_that_shrinks_while_it_is_read_is_padded() {
    let place = Place::new();
    place.put("a", &[1; 2000]);
    let mut handler = place.open("fs.tar_out", &json!({ "path": "a" })).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(place.path("a"))
        .unwrap()
        .set_len(700)
        .unwrap();
    let mut out = super::Recorder::new();
    super::drive(handler.as_mut(), b"", 1, &mut out);
    assert_eq!(out.data.len(), 512 + 2048 + 1024);
    assert_eq!(&out.data[512..1212], [1; 700]);
    assert!(out.data[1212..].iter().all(|&c| c == 0));
}

#[test]
fn numbers_too_large_for_a_field_go_into_a_pax_header() {
    use crate::fs::tar::writer::{write_header, Header, Kind};
    use crate::tar::reader::{self, Item, Member, Reader};
    use crate::tar::Time;
    for (size, mtime) in [(1u64 << 40, -5i64), (0o77777777777, 1 << 40), (7, 7)] {
        let mut bytes = Vec::new();
        write_header(
            &mut bytes,
            &Header {
                kind: Kind::File,
                name: b"\xff odd",
                target: b"",
                size,
                mode: 0o640,
                uid: u32::MAX,
                gid: 5,
                mtime,
            },
        );
        let mut reader = Reader::new();
        match reader.next(&mut bytes.as_slice()).unwrap() {
            Item::Member(member) => assert_eq!(
                member,
                Member {
                    kind: reader::Kind::File,
                    name: b"\xff odd".to_vec(),
                    target: Vec::new(),
                    mode: 0o640,
                    uid: Ok(u64::from(u32::MAX)),
                    gid: Ok(5),
                    mtime: Time::whole(mtime),
                    xattrs: Vec::new(),
                    size,
                    sparse: None,
                }
            ),
            _ => panic!("no member"),
        }
    }
}
