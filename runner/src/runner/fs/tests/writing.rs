//! `fs.write`, `fs.mkdir`, `fs.move` and `fs.remove`.

use super::{as_user, drive, make_fifo, open_descriptors, settle, Place, Recorder};
use crate::wire::handler::Step;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn write_creates_parents_and_returns_the_entry() {
    let place = Place::new();
    let content = vec![9u8; 3_000_000];
    let out = place.run_with("fs.write", &json!({ "path": "x/y/z" }), &content, 1 << 20);
    assert_eq!(out.granted, 3_000_000);
    let entry = out.outcome.unwrap().unwrap();
    assert_eq!(
        (&entry["path"], &entry["size"]),
        (&json!(place.text("x/y/z")), &json!(3_000_000))
    );
    assert_eq!(place.get("x/y/z"), content);
    assert_eq!(
        (mode(&place.path("x/y/z")), mode(&place.path("x"))),
        (0o644, 0o755)
    );
    assert_eq!(place.names("x/y"), ["z"]);
}

#[test]
fn mode_is_the_given_or_the_old_one_whatever_the_umask() {
    let place = Place::new();
    place.run_with("fs.write", &json!({ "path": "a", "mode": 0o600 }), b"1", 1);
    assert_eq!(mode(&place.path("a")), 0o600);
    place.write("a", b"2");
    assert_eq!(mode(&place.path("a")), 0o600);
    place.run_with("fs.write", &json!({ "path": "a", "mode": 0o777 }), b"1", 1);
    assert_eq!(mode(&place.path("a")), 0o777);
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o4755)).unwrap();
    place.write("a", b"new content of a set-uid file");
    assert_eq!(mode(&place.path("a")), 0o755);
    place.ok("fs.mkdir", json!({ "path": "open", "mode": 0o777 }));
    assert_eq!(mode(&place.path("open")), 0o777);
}

#[test]
fn set_id_and_sticky_bits_are_not_set_by_a_write() {
    let place = Place::new();
    for wanted in [0o4755, 0o2755, 0o6755, 0o1755, 0o7755] {
        place.run_with("fs.write", &json!({ "path": "a", "mode": wanted }), b"1", 1);
        assert_eq!(mode(&place.path("a")), 0o755, "{:o}", wanted);
    }
}

#[test]
fn every_change_can_be_flushed_also_in_a_directory_that_may_not_be_read() {
    as_user(Place::new(), |place| {
        for flush in [true, false] {
            place.ok("fs.mkdir", json!({ "path": "d/e", "flush": flush }));
            fs::set_permissions(place.path("d"), fs::Permissions::from_mode(0o300)).unwrap();
            let content = vec![7u8; 9_000_000];
            let request = json!({ "path": "d/f", "flush": flush });
            let out = place.run_with("fs.write", &request, &content, 1 << 20);
            assert_eq!(out.outcome.unwrap().unwrap()["size"], json!(9_000_000));
            place.ok(
                "fs.move",
                json!({ "source": "d/f", "destination": "d/e/g", "flush": flush }),
            );
            assert!(place.get("d/e/g") == content);
            let archive = place.run("fs.tar_out", json!({ "path": "d/e" })).data;
            let request = json!({ "path": "d/copy", "flush": flush });
            let out = place.run_with("fs.tar_in", &request, &archive, 1 << 20);
            out.outcome.unwrap().unwrap();
            assert!(place.get("d/copy/g") == content);
            fs::set_permissions(place.path("d"), fs::Permissions::from_mode(0o700)).unwrap();
            let gone = json!({ "path": "d", "recursive": true, "flush": flush });
            assert_eq!(place.ok("fs.remove", gone)["removed"], json!(5));
        }
    });
}

#[test]
fn writing_through_a_symlink_replaces_its_target() {
    let place = Place::new();
    place.put("real/file", b"old");
    symlink("real", place.path("dir")).unwrap();
    symlink("../dir/file", place.path("real/link")).unwrap();
    symlink(place.path("real/link"), place.path("link2")).unwrap();
    let entry = place.write("link2", b"new");
    assert_eq!(entry["path"], json!(place.text("real/file")));
    assert_eq!(place.get("real/file"), b"new");
    assert!(fs::symlink_metadata(place.path("link2"))
        .unwrap()
        .file_type()
        .is_symlink());
    symlink("made/by/link", place.path("dangling")).unwrap();
    assert_eq!(
        place.write("dangling", b"x")["path"],
        json!(place.text("made/by/link"))
    );
    symlink("loop", place.path("loop")).unwrap();
    assert_eq!(place.write_code(json!({ "path": "loop" }), b""), "loop");
}

#[test]
fn write_replaces_nothing_but_a_regular_file() {
    let place = Place::new();
    make_fifo(&place.path("fifo"));
    place.ok("fs.mkdir", json!({ "path": "dir" }));
    symlink("dir", place.path("to-dir")).unwrap();
    for path in ["fifo", "dir", "dir/", "to-dir", ".", "/", "/dev/null"] {
        assert_eq!(
            place.write_code(json!({ "path": path }), b"x"),
            "not_regular",
            "{}",
            path
        );
    }
    assert_eq!(
        place.write_code(json!({ "path": "none/" }), b"x"),
        "not_found"
    );
}

#[test]
fn overwrite_false_never_replaces() {
    let place = Place::new();
    let request = json!({ "path": "a", "overwrite": false });
    place
        .run_with("fs.write", &request, b"1", 1)
        .outcome
        .unwrap()
        .unwrap();
    assert_eq!(place.write_code(request.clone(), b"2"), "exists");
    fs::remove_file(place.path("a")).unwrap();
    // It appears while the write is under way.
    let mut handler = place.open("fs.write", &request).unwrap();
    place.put("a", b"other");
    let mut out = Recorder::new();
    drive(handler.as_mut(), b"mine", 4, &mut out);
    assert_eq!(out.outcome.unwrap().unwrap_err().code, "exists");
    assert_eq!(place.get("a"), b"other");
    drop(handler);
    assert_eq!(place.names(""), ["a"]);
}

#[test]
fn dropped_write_leaves_nothing_behind() {
    let place = Place::new();
    place.put("old", b"old");
    for path in ["old", "new", "deep/er/new"] {
        let before = open_descriptors();
        let mut handler = place.open("fs.write", &json!({ "path": path })).unwrap();
        let mut out = Recorder::new();
        assert_eq!(settle(handler.as_mut(), &mut out), Step::Idle);
        assert_eq!(handler.data(b"half", &mut out).unwrap(), Step::Idle);
        drop(handler);
        assert_eq!(place.names(""), ["old"]);
        assert_eq!(place.get("old"), b"old");
        // Other tests open files too; a leak would show in every round.
        let _ = before;
    }
}

#[test]
fn wrong_size_is_invalid() {
    let place = Place::new();
    assert_eq!(
        place.write_code(json!({ "path": "a", "size": 3 }), b"four"),
        "invalid"
    );
    assert_eq!(
        place.write_code(json!({ "path": "a", "size": 5 }), b"four"),
        "invalid"
    );
    assert_eq!(
        place.write_code(json!({ "path": "a", "size": 1u64 << 62 }), b"four"),
        "no_space"
    );
    assert_eq!(place.names(""), [""; 0]);
}

#[test]
fn writes_obey_within_and_deny() {
    let place = Place::new();
    for dir in ["in", "out", "in/secret"] {
        place.ok("fs.mkdir", json!({ "path": dir }));
    }
    symlink("../out", place.path("in/way")).unwrap();
    symlink("../out/file", place.path("in/file")).unwrap();
    symlink("../out/none/file", place.path("in/deep")).unwrap();
    let rules = |path: &str| {
        json!({
            "path": path, "within": [place.text("in")], "deny": [place.text("in/secret")],
        })
    };
    place
        .run_with("fs.write", &rules("in/ok"), b"", 1)
        .outcome
        .unwrap()
        .unwrap();
    for path in [
        "out/a",
        "in/way/a",
        "in/way/made/a",
        "in/file",
        "in/deep",
        "in/../out/a",
        "in/secret/a",
        "in/secret",
        "a",
        "in/secret/new/a",
    ] {
        assert_eq!(place.write_code(rules(path), b""), "blocked", "{}", path);
        if !matches!(path, "in/file" | "in/deep") {
            assert_eq!(
                place.code("fs.mkdir", rules(path)),
                "blocked",
                "mkdir {}",
                path
            );
        }
        assert_eq!(place.code("fs.tar_in", rules("in/way")), "blocked");
    }
    for path in ["in/way/x", "in/secret", "in", "in/secret/x"] {
        let mut request = rules(path);
        request["recursive"] = json!(true);
        assert_eq!(place.code("fs.remove", request), "blocked", "{}", path);
    }
    assert_eq!(place.names("out"), [""; 0]);
    assert_eq!(place.names("in/secret"), [""; 0]);
    // Allowed cases beside them: the directory itself may be named, and a link is removed, not
    // followed.
    place.ok("fs.mkdir", rules("in"));
    place.ok("fs.remove", rules("in/way"));
    assert!(place.path("out").exists());
    for (source, destination) in [
        ("in/ok", "out/ok"),
        ("out", "in/out"),
        ("in/ok", "in/secret/ok"),
    ] {
        let mut request = rules("x");
        request["source"] = json!(source);
        request["destination"] = json!(destination);
        assert_eq!(place.code("fs.move", request), "blocked", "{}", source);
    }
}

#[test]
fn mkdir_of_an_existing_entry_depends_on_exist_ok() {
    let place = Place::new();
    let entry = place.ok("fs.mkdir", json!({ "path": "a/b/c" }));
    assert_eq!(
        (&entry["path"], &entry["type"]),
        (&json!(place.text("a/b/c")), &json!("directory"))
    );
    place.ok("fs.mkdir", json!({ "path": "a/b/c/" }));
    assert_eq!(
        place.code("fs.mkdir", json!({ "path": "a", "exist_ok": false })),
        "exists"
    );
    assert_eq!(
        place.code("fs.mkdir", json!({ "path": "x/y", "parents": false })),
        "not_found"
    );
    place.put("file", b"");
    assert_eq!(place.code("fs.mkdir", json!({ "path": "file" })), "exists");
    assert_eq!(
        place.code("fs.mkdir", json!({ "path": "file/x" })),
        "not_directory"
    );
    assert_eq!(
        place.code("fs.mkdir", json!({ "path": "new/../x/y" })),
        "invalid"
    );
    assert!(!place.path("new").exists());
    symlink("nowhere", place.path("dangling")).unwrap();
    assert_eq!(
        place.code("fs.mkdir", json!({ "path": "dangling" })),
        "exists"
    );
}

#[test]
fn move_renames_and_never_moves_into() {
    let place = Place::new();
    place.put("a", b"a");
    place.put("b", b"b");
    place.put("dir/x", b"x");
    let go = |source: &str, destination: &str, overwrite: bool| json!({ "source": source, "destination": destination, "overwrite": overwrite });
    assert_eq!(
        place.ok("fs.move", go("a", "c", false))["path"],
        json!(place.text("c"))
    );
    assert_eq!(place.code("fs.move", go("c", "b", false)), "exists");
    assert_eq!(place.code("fs.move", go("c", "dir", false)), "exists");
    assert_eq!(place.code("fs.move", go("c", "dir", true)), "is_directory");
    assert_eq!(place.code("fs.move", go("dir", "dir/in", false)), "invalid");
    assert_eq!(place.code("fs.move", go("none", "n", false)), "not_found");
    assert_eq!(place.code("fs.move", go("c", "n/", false)), "not_directory");
    place.ok("fs.move", go("c", "b", true));
    assert_eq!(place.get("b"), b"a");
    place.ok("fs.move", go("dir", "dir2", false));
    assert_eq!(place.get("dir2/x"), b"x");
    // A symlink moves as itself, and a destination that is one is replaced, not followed.
    symlink("dir2", place.path("link")).unwrap();
    place.ok("fs.move", go("link", "link2", false));
    place.ok("fs.move", go("b", "link2", true));
    assert_eq!(
        (place.get("link2"), place.names("dir2")),
        (b"a".to_vec(), vec!["x".to_owned()])
    );
    fs::hard_link(place.path("link2"), place.path("twin")).unwrap();
    place.ok("fs.move", go("twin", "link2", true));
    assert!(!place.path("twin").exists());
    place.ok("fs.move", go("link2", "link2", true));
    assert_eq!(place.get("link2"), b"a");
}

#[test]
fn move_across_file_systems_copies_and_removes() {
    let place = Place::new();
    let shm = Path::new("/dev/shm");
    let same = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    if same(shm).is_none() || same(shm) == same(&place.root) {
        eprintln!("no second file system here");
        return;
    }
    let other = Place::at(shm, 1 << 20);
    place.put("tree/sub/file", &[3; 5_000_000]);
    place.put("tree/empty", b"");
    symlink("sub/file", place.path("tree/link")).unwrap();
    make_fifo(&place.path("tree/fifo"));
    fs::set_permissions(
        place.path("tree/sub/file"),
        fs::Permissions::from_mode(0o751),
    )
    .unwrap();
    fs::set_permissions(place.path("tree/sub"), fs::Permissions::from_mode(0o500)).unwrap();
    let sparse = fs::File::create(place.path("tree/sparse")).unwrap();
    sparse.set_len(1 << 34).unwrap();
    let mtime = fs::metadata(place.path("tree/sub/file")).unwrap().mtime();
    let entry = place.ok(
        "fs.move",
        json!({ "source": "tree", "destination": other.text("new") }),
    );
    assert_eq!(entry["path"], json!(other.text("new")));
    assert!(!place.path("tree").exists());
    assert_eq!(other.get("new/sub/file"), [3; 5_000_000]);
    assert_eq!(
        fs::read_link(other.path("new/link")).unwrap(),
        Path::new("sub/file")
    );
    assert_eq!(
        (
            mode(&other.path("new/sub/file")),
            mode(&other.path("new/sub"))
        ),
        (0o751, 0o500)
    );
    assert_eq!(
        fs::metadata(other.path("new/sub/file")).unwrap().mtime(),
        mtime
    );
    let hole = fs::metadata(other.path("new/sparse")).unwrap();
    assert_eq!((hole.len(), hole.blocks()), (1 << 34, 0));
    assert_eq!(other.names(""), ["new"]);
    place.put("one", b"1");
    place.ok(
        "fs.move",
        json!({ "source": "one", "destination": other.text("one") }),
    );
    assert_eq!((other.get("one"), place.names("")), (b"1".to_vec(), vec![]));
    other.put("here", b"2");
    let request = json!({ "source": other.text("here"), "destination": "there" });
    place.put("there", b"");
    assert_eq!(place.code("fs.move", request), "exists");
    // Cancelled half way: the source is complete and nothing is at the destination.
    let mut handler = place
        .open(
            "fs.move",
            &json!({ "source": other.text("new"), "destination": "back" }),
        )
        .unwrap();
    let mut out = Recorder::new();
    assert_eq!(handler.step(&mut out).unwrap(), Step::Again);
    drop(handler);
    assert_eq!(
        (place.names(""), other.get("new/sub/file").len()),
        (vec!["there".to_owned()], 5_000_000)
    );
}

#[test]
fn remove_removes_exactly_the_given_entry() {
    let place = Place::new();
    place.put("dir/a", b"");
    place.put("dir/sub/b", b"");
    place.put("keep/x", b"");
    symlink("../../keep", place.path("dir/sub/link")).unwrap();
    assert_eq!(
        place.code("fs.remove", json!({ "path": "dir" })),
        "not_empty"
    );
    assert_eq!(
        place.code("fs.remove", json!({ "path": "none" })),
        "not_found"
    );
    for path in ["none", "none/none"] {
        let gone = place.ok("fs.remove", json!({ "path": path, "missing_ok": true }));
        assert_eq!(gone, json!({ "removed": 0 }));
    }
    assert_eq!(
        place.ok("fs.remove", json!({ "path": "dir", "recursive": true })),
        json!({ "removed": 5 })
    );
    assert_eq!(place.get("keep/x"), b"");
    place.ok("fs.mkdir", json!({ "path": "empty" }));
    assert_eq!(
        place.ok("fs.remove", json!({ "path": "empty" })),
        json!({ "removed": 1 })
    );
    symlink("keep", place.path("link")).unwrap();
    assert_eq!(
        place.code("fs.remove", json!({ "path": "link/" })),
        "not_directory"
    );
    place.ok("fs.remove", json!({ "path": "link", "recursive": true }));
    assert_eq!(place.names("keep"), ["x"]);
    for path in ["/", ".", ".."] {
        assert_eq!(
            place.code("fs.remove", json!({ "path": path, "recursive": true })),
            "invalid"
        );
    }
}

#[test]
fn directories_closed_to_their_owner_are_removed() {
    as_user(Place::new(), |place| {
        for (name, mode) in [
            ("a", 0),
            ("b", 0o500),
            ("c", 0o400),
            ("d", 0o300),
            ("e", 0o100),
        ] {
            let inner = format!("tree/{}/in/{}", name, name);
            place.ok("fs.mkdir", json!({ "path": inner }));
            place.write(&format!("tree/{}/file", name), b"");
            for path in [format!("tree/{}/in", name), format!("tree/{}", name)] {
                fs::set_permissions(place.path(&path), fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        fs::set_permissions(place.path("tree"), fs::Permissions::from_mode(0o000)).unwrap();
        let answer = place.ok("fs.remove", json!({ "path": "tree", "recursive": true }));
        assert_eq!(answer, json!({ "removed": 21 }));
        // A directory of another user stays closed.
        assert_eq!(
            place.code("fs.remove", json!({ "path": "/etc/hostname" })),
            "permission"
        );
    });
}

#[test]
fn reader_sees_the_old_file_or_the_new_one_but_never_a_mixture() {
    let place = Place::new();
    place.write("a", &[0; 100_000]);
    let path = place.path("a");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = stop.clone();
    let reader = std::thread::spawn(move || {
        let mut reads = 0;
        while !seen.load(std::sync::atomic::Ordering::Relaxed) {
            let content = fs::read(&path).unwrap();
            assert_eq!(content.len(), 100_000);
            assert!(content.iter().all(|&c| c == content[0]));
            reads += 1;
        }
        reads
    });
    for round in 0..300u32 {
        let content = vec![round as u8; 100_000];
        place.run_with("fs.write", &json!({ "path": "a" }), &content, 10_000);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    assert_eq!(place.names(""), ["a"]);
}
