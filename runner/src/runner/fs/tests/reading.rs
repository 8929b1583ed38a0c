//! `fs.stat`, `fs.read`, `fs.list` and what they refuse.

use super::{as_user, drive, make_fifo, settle, Place, Recorder};
use crate::fs::lookup;
use crate::wire::handler::Step;
use serde_json::{json, Value};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

fn paths(page: &Value, place: &Place) -> Vec<String> {
    let base = format!("{}/", place.text(""));
    let base = base.replace("//", "/");
    page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["path"].as_str().unwrap().replacen(&base, "", 1))
        .collect()
}

#[test]
fn stat_reports_every_field_of_a_file() {
    let place = Place::new();
    place.put("a", b"hello");
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o640)).unwrap();
    let meta = fs::metadata(place.path("a")).unwrap();
    assert_eq!(
        place.ok("fs.stat", json!({ "path": "a" })),
        json!({
            "path": place.text("a"), "name": "a", "type": "file", "size": 5, "mode": 0o640,
            "mtime_unix": meta.mtime(), "uid": meta.uid(), "gid": meta.gid(),
        })
    );
}

#[test]
fn stat_follows_a_symlink_unless_follow_is_false() {
    let place = Place::new();
    place.put("dir/target", b"x");
    symlink("dir/target", place.path("link")).unwrap();
    let followed = place.ok("fs.stat", json!({ "path": "link" }));
    assert_eq!(followed["path"], json!(place.text("dir/target")));
    assert_eq!(followed["type"], json!("file"));
    let itself = place.ok("fs.stat", json!({ "path": "link", "follow": false }));
    assert_eq!(itself["path"], json!(place.text("link")));
    assert_eq!(
        (&itself["type"], &itself["target"]),
        (&json!("symlink"), &json!("dir/target"))
    );
}

#[test]
fn names_are_bytes_and_come_back_exactly() {
    let place = Place::new();
    for name in ["a\nb", "-rf", "\u{202e}gpj.exe", "<script>", " ", "ü"] {
        place.write(name, b"x");
        assert_eq!(
            place.ok("fs.stat", json!({ "path": name }))["name"],
            json!(name)
        );
    }
    let odd = json!({ "b64": "//5hCg==" });
    let out = place.run_with("fs.write", &json!({ "path": odd }), b"odd", 8);
    assert_eq!(out.outcome.unwrap().unwrap()["name"], odd);
    let page = place.ok("fs.list", json!({ "path": "." }));
    assert!(page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .any(|entry| entry["name"] == odd));
    assert_eq!(place.run("fs.read", json!({ "path": odd })).data, b"odd");
}

#[test]
fn invalid_paths_are_refused_before_anything_is_accessed() {
    let place = Place::new();
    for verb in [
        "fs.stat",
        "fs.list",
        "fs.read",
        "fs.write",
        "fs.mkdir",
        "fs.remove",
        "fs.watch",
        "fs.tar_in",
        "fs.tar_out",
    ] {
        for (path, code) in [
            (json!(""), "invalid"),
            (json!("a\0b"), "invalid"),
            (json!({ "b64": "YQBi" }), "invalid"),
            (json!(1), "invalid"),
            (json!(null), "invalid"),
            (json!("a".repeat(4096)), "name_too_long"),
            (json!({ "b64": "####" }), "invalid"),
        ] {
            assert_eq!(
                place.code(verb, json!({ "path": path })),
                code,
                "{} {}",
                verb,
                path
            );
        }
    }
    assert_eq!(
        place.code("fs.stat", json!({ "path": "x".repeat(300) })),
        "name_too_long"
    );
    assert_eq!(
        place.code("fs.nothing", json!({ "path": "a" })),
        "unsupported"
    );
    assert_eq!(
        place.code("fs.stat", json!({ "path": "a", "deny": "x" })),
        "invalid"
    );
    assert_eq!(
        place.code("fs.stat", json!({ "path": "a", "deny": ["x"] })),
        "invalid"
    );
    assert_eq!(
        place.code("fs.read", json!({ "path": "a", "offset": -1 })),
        "invalid"
    );
    assert_eq!(
        place.code("fs.list", json!({ "path": ".", "limit": 0 })),
        "invalid"
    );
    assert_eq!(
        place.code("fs.list", json!({ "path": ".", "recursive": "yes" })),
        "invalid"
    );
    assert_eq!(
        place.code("fs.list", json!({ "path": ".", "cursor": "../x" })),
        "invalid"
    );
}

#[test]
fn ordinary_failures_have_their_own_codes() {
    let place = Place::new();
    place.put("file", b"");
    symlink("loop", place.path("loop")).unwrap();
    assert_eq!(
        place.code("fs.stat", json!({ "path": "none" })),
        "not_found"
    );
    assert_eq!(
        place.code("fs.stat", json!({ "path": "file/x" })),
        "not_directory"
    );
    assert_eq!(place.code("fs.stat", json!({ "path": "loop" })), "loop");
    assert_eq!(
        place.code("fs.list", json!({ "path": "file" })),
        "not_directory"
    );
    assert_eq!(place.code("fs.read", json!({ "path": "." })), "not_regular");
}

#[test]
fn reading_a_range_returns_exactly_that_range() {
    let place = Place::new();
    let content: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    place.put("a", &content);
    for (offset, limit) in [
        (0usize, 0usize),
        (0, 1),
        (999_999, 10),
        (5, 700_000),
        (2_000_000, 5),
    ] {
        let out = place.run(
            "fs.read",
            json!({ "path": "a", "offset": offset, "limit": limit }),
        );
        let from = offset.min(content.len());
        let to = (offset + limit).min(content.len()).max(from);
        assert_eq!(out.data, &content[from..to]);
        assert_eq!(
            out.outcome.unwrap().unwrap(),
            json!({ "size": 1_000_000, "bytes": to - from })
        );
        assert_eq!(out.events[0]["event"], json!("open"));
        assert_eq!(out.events[0]["entry"]["size"], json!(1_000_000));
    }
    assert_eq!(place.read("a"), content);
}

#[test]
fn reading_waits_for_credit_and_then_goes_on() {
    let place = Place::new();
    place.put("a", &[7; 100_000]);
    let mut handler = place.open("fs.read", &json!({ "path": "a" })).unwrap();
    let mut out = Recorder::new();
    out.credit = 10;
    assert_eq!(settle(handler.as_mut(), &mut out), Step::Idle);
    assert_eq!(out.data.len(), 10);
    assert_eq!(settle(handler.as_mut(), &mut out), Step::Idle);
    out.credit = usize::MAX;
    assert_eq!(settle(handler.as_mut(), &mut out), Step::Done);
    assert_eq!(out.data, [7; 100_000]);
}

#[test]
fn growing_file_ends_at_its_first_size_and_shrinking_one_early() {
    let place = Place::new();
    place.put("a", &[1; 1000]);
    let mut handler = place.open("fs.read", &json!({ "path": "a" })).unwrap();
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(place.path("a"))
        .unwrap();
    file.write_all(&[2; 5000]).unwrap();
    let mut out = Recorder::new();
    drive(handler.as_mut(), b"", 1, &mut out);
    assert_eq!(out.data, [1; 1000]);
    assert_eq!(
        out.outcome.unwrap().unwrap(),
        json!({ "size": 1000, "bytes": 1000 })
    );

    let mut handler = place.open("fs.read", &json!({ "path": "a" })).unwrap();
    file.set_len(10).unwrap();
    let mut out = Recorder::new();
    drive(handler.as_mut(), b"", 1, &mut out);
    assert_eq!(
        out.outcome.unwrap().unwrap(),
        json!({ "size": 6000, "bytes": 10 })
    );
}

#[test]
fn more_than_max_is_too_large_unless_a_limit_is_given() {
    let place = Place::new();
    place.put("a", &[0; 100]);
    assert_eq!(
        place.code("fs.read", json!({ "path": "a", "max": 99 })),
        "too_large"
    );
    place.ok("fs.read", json!({ "path": "a", "max": 100 }));
    place.ok("fs.read", json!({ "path": "a", "max": 99, "offset": 1 }));
    place.ok("fs.read", json!({ "path": "a", "max": 1, "limit": 50 }));
}

#[test]
fn anything_but_a_regular_file_is_refused_at_once() {
    let place = Place::new();
    make_fifo(&place.path("fifo"));
    let _socket = UnixListener::bind(place.path("socket")).unwrap();
    symlink("fifo", place.path("to-fifo")).unwrap();
    symlink("/proc/self/fd/0", place.path("to-magic")).unwrap();
    for path in [
        "fifo",
        "socket",
        "to-fifo",
        "to-magic",
        "/dev/zero",
        "/dev/null",
        "/dev/tty",
        "/dev/stdin",
        "/proc/self/root",
        "/proc/self/fd/0",
        "/proc/self/mem",
        "/proc/self/status",
        "/proc/self/exe",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/etc/passwd",
        "/proc/thread-self/fd/1",
    ] {
        for openat2 in [true, false] {
            lookup::WITHOUT_OPENAT2.with(|flag| flag.set(!openat2));
            let out = place.run("fs.read", json!({ "path": path }));
            let code = out.outcome.unwrap().unwrap_err().code;
            // /dev/tty has no device behind it where there is no terminal.
            assert!(
                code == "not_regular" || (path == "/dev/tty" && code == "not_found"),
                "{} {}",
                path,
                code
            );
        }
    }
    lookup::WITHOUT_OPENAT2.with(|flag| flag.set(false));
}

#[test]
fn magic_links_are_blocked_for_every_other_verb() {
    let place = Place::new();
    for openat2 in [true, false] {
        lookup::WITHOUT_OPENAT2.with(|flag| flag.set(!openat2));
        assert_eq!(
            place.code("fs.stat", json!({ "path": "/proc/self/root/etc" })),
            "blocked"
        );
        assert_eq!(
            place.code("fs.list", json!({ "path": "/proc/self/cwd" })),
            "blocked"
        );
        assert_eq!(
            place.code("fs.mkdir", json!({ "path": "/proc/self/root/tmp/x" })),
            "blocked"
        );
        // The plain links of /proc are not magic.
        place.ok("fs.stat", json!({ "path": "/proc/self/status" }));
    }
    lookup::WITHOUT_OPENAT2.with(|flag| flag.set(false));
}

#[test]
fn deny_checks_the_real_path_and_hides_what_exists() {
    let place = Place::new();
    place.put("secret/key", b"k");
    place.put("open", b"o");
    symlink("secret", place.path("way")).unwrap();
    symlink("../open", place.path("secret/out")).unwrap();
    let deny = json!([place.text("secret")]);
    for path in [
        "secret",
        "secret/key",
        "way/key",
        "./way/../secret/key",
        "secret/none",
        "way",
    ] {
        assert_eq!(
            place.code("fs.stat", json!({ "path": path, "deny": deny })),
            "blocked",
            "{}",
            path
        );
        assert_eq!(
            place.code("fs.read", json!({ "path": path, "deny": deny })),
            "blocked",
            "{}",
            path
        );
    }
    // A link in the denied directory to something outside leads to an allowed path.
    assert_eq!(
        place
            .run("fs.read", json!({ "path": "secret/out", "deny": deny }))
            .data,
        b"o"
    );
    place.ok("fs.stat", json!({ "path": "open", "deny": deny }));
    let through_link = json!([place.text("way")]);
    assert_eq!(
        place.code(
            "fs.stat",
            json!({ "path": "secret/key", "deny": through_link })
        ),
        "blocked"
    );
    let page = place.ok(
        "fs.list",
        json!({ "path": ".", "recursive": true, "deny": deny }),
    );
    assert_eq!(paths(&page, &place), ["open", "way"]);
}

#[test]
fn without_proc_a_policy_is_refused_and_the_rest_works() {
    let place = Place::new();
    place.put("a", b"x");
    lookup::WITHOUT_PROC.with(|flag| flag.set(true));
    assert_eq!(
        place.code("fs.stat", json!({ "path": "a", "deny": ["/root"] })),
        "blocked"
    );
    assert_eq!(
        place.write_code(json!({ "path": "b", "within": [place.text("")] }), b""),
        "blocked"
    );
    assert_eq!(
        place.ok("fs.stat", json!({ "path": "./a" }))["path"],
        json!(place.text("a"))
    );
    assert_eq!(place.write("c/d", b"x")["path"], json!(place.text("c/d")));
    lookup::WITHOUT_PROC.with(|flag| flag.set(false));
    assert!(!place.path("b").exists());
}

#[test]
fn list_is_sorted_by_bytes_and_a_directory_precedes_its_content() {
    let place = Place::new();
    for name in ["b/2", "b/10", "b/sub/x", "a", "b-", "b.d/y", "Z", "b/sub.x"] {
        place.put(name, b"");
    }
    symlink("b", place.path("link")).unwrap();
    let whole = place.ok("fs.list", json!({ "path": ".", "recursive": true }));
    let expected = [
        "Z", "a", "b", "b/10", "b/2", "b/sub", "b/sub/x", "b/sub.x", "b-", "b.d", "b.d/y", "link",
    ];
    // Each directory is in byte order of its own names: `b` < `b-` < `b.d`, `sub` < `sub.x`.
    assert_eq!(paths(&whole, &place), expected);
    assert_eq!(whole["next"], Value::Null);
    let flat = place.ok("fs.list", json!({ "path": "." }));
    assert_eq!(paths(&flat, &place), ["Z", "a", "b", "b-", "b.d", "link"]);
    assert_eq!(flat["entries"][5]["target"], json!("b"));
    for limit in 1..=13 {
        let mut seen = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let page = place.ok(
                "fs.list",
                json!({ "path": ".", "recursive": true, "limit": limit, "cursor": cursor }),
            );
            let entries = paths(&page, &place);
            assert!(entries.len() <= limit && !entries.is_empty());
            seen.extend(entries);
            cursor = page["next"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(seen, expected, "limit {}", limit);
    }
}

#[test]
fn page_continues_after_the_last_one_though_the_entry_is_gone() {
    let place = Place::new();
    for name in ["a", "b", "c/x", "c/y", "d"] {
        place.put(name, b"");
    }
    let page = place.ok(
        "fs.list",
        json!({ "path": ".", "recursive": true, "limit": 4 }),
    );
    assert_eq!(paths(&page, &place), ["a", "b", "c", "c/x"]);
    fs::remove_file(place.path("c/x")).unwrap();
    fs::remove_file(place.path("a")).unwrap();
    place.put("aa", b"");
    place.put("c/xx", b"");
    let next = json!({ "path": ".", "recursive": true, "cursor": page["next"] });
    assert_eq!(
        paths(&place.ok("fs.list", next.clone()), &place),
        ["c/xx", "c/y", "d"]
    );
    fs::remove_dir_all(place.path("c")).unwrap();
    assert_eq!(paths(&place.ok("fs.list", next), &place), ["d"]);
}

#[test]
fn unreadable_directory_is_listed_without_its_content() {
    as_user(Place::new(), |place| {
        place.ok("fs.mkdir", json!({ "path": "shut/in" }));
        place.write("z", b"");
        place.ok("fs.mkdir", json!({ "path": "empty", "mode": 0 }));
        let shut = fs::Permissions::from_mode(0o000);
        fs::set_permissions(place.path("shut"), shut).unwrap();
        let page = place.ok("fs.list", json!({ "path": ".", "recursive": true }));
        assert_eq!(paths(&page, place), ["empty", "shut", "z"]);
        assert_eq!(
            place.code("fs.list", json!({ "path": "shut" })),
            "permission"
        );
        assert_eq!(
            place.code("fs.stat", json!({ "path": "shut/in" })),
            "permission"
        );
        assert_eq!(
            place.code("fs.tar_out", json!({ "path": "." })),
            "permission"
        );
    });
}
