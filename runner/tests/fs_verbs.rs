//! The file verbs through the real binary: framing, credit, cancelling, fairness and identity.

use crate::client::*;
use serde_json::{json, Value};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::os::unix::io::AsRawFd;
use std::path::Path;

/// Send DATA as credit comes, then END. Return how the stream ended.
fn upload(
    client: &mut Client,
    verb: &str,
    request: Value,
    content: &[u8],
) -> Result<Value, Refused> {
    let stream = client.open(verb, request);
    let mut window = 1usize << 20;
    let mut rest = content;
    while !rest.is_empty() {
        while window == 0 {
            let frame = client.next(stream);
            match frame.kind {
                CREDIT => {
                    window += u32::from_be_bytes(frame.body[..4].try_into().unwrap()) as usize
                }
                RESULT => return Ok(serde_json::from_slice(&frame.body).unwrap()),
                ERROR => return Err(Refused(serde_json::from_slice(&frame.body).unwrap())),
                kind => panic!("frame of kind {kind}"),
            }
        }
        let (piece, later) = rest.split_at(rest.len().min(window).min(1 << 18));
        client.send(DATA, stream, piece);
        window -= piece.len();
        rest = later;
    }
    client.send(END, stream, b"");
    client.finish(stream).end
}

fn download(client: &mut Client, verb: &str, request: Value) -> Outcome {
    let stream = client.open(verb, request);
    client.finish(stream)
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn give(path: &Path, uid: u32) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: chown reads one path.
    assert_eq!(unsafe { libc::chown(path.as_ptr(), uid, uid) }, 0);
}

#[test]
fn written_file_is_read_back_byte_for_byte() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let content: Vec<u8> = (0..10_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let entry = upload(
        &mut client,
        "fs.write",
        json!({ "path": "a/b", "size": content.len() }),
        &content,
    )
    .unwrap();
    assert_eq!(entry["size"], json!(content.len()));
    let read = download(&mut client, "fs.read", json!({ "path": "a/b" }));
    assert_eq!(
        read.end,
        Ok(json!({ "size": content.len(), "bytes": content.len() }))
    );
    assert_eq!(read.events[0]["entry"], entry);
    assert!(read.data == content);
    let part = download(
        &mut client,
        "fs.read",
        json!({ "path": "a/b", "offset": 9_999_990, "limit": 100 }),
    );
    assert!(part.data == content[9_999_990..]);
}

#[test]
fn reader_without_credit_waits_and_others_go_on() {
    let runner = Runner::start();
    let mut client = runner.connect();
    fs::write(runner.workspace().join("big"), vec![1u8; 3 << 20]).unwrap();
    let slow = client.open("fs.read", json!({ "path": "big" }));
    let mut got = 0;
    while got < 1 << 20 {
        let frame = client.next(slow);
        if frame.kind == DATA {
            got += frame.body.len();
        }
    }
    assert_eq!(got, 1 << 20, "more than the credit");
    for _ in 0..100 {
        assert_eq!(
            client.call("fs.stat", json!({ "path": "big" })).unwrap()["size"],
            json!(3 << 20)
        );
    }
    client.grant(slow, 2 << 20);
    assert_eq!(client.finish(slow).data.len() + got, 3 << 20);
}

#[test]
fn cancelled_or_abandoned_write_leaves_only_the_old_file() {
    let runner = Runner::start();
    let workspace = runner.workspace();
    fs::write(workspace.join("old"), b"old").unwrap();
    let mut client = runner.connect();
    let stream = client.open("fs.write", json!({ "path": "old" }));
    client.send(DATA, stream, &[9; 100_000]);
    client.send(CANCEL, stream, b"");
    assert_eq!(client.finish(stream).code(), "cancelled");
    let stream = client.open("fs.write", json!({ "path": "new/deep" }));
    client.send(DATA, stream, b"half");
    client.call("ping", json!({})).unwrap();
    assert_eq!(names(&workspace), ["new", "old"]);
    drop(client);
    eventually(|| match names(&workspace) {
        list if list == ["old"] => Ok(()),
        list => Err(list),
    });
    assert_eq!(fs::read(workspace.join("old")).unwrap(), b"old");
}

#[test]
fn huge_listing_or_removal_does_not_delay_others() {
    let runner = Runner::start();
    let wide = runner.workspace().join("wide");
    fs::create_dir(&wide).unwrap();
    for number in 0..20_000 {
        fs::write(wide.join(number.to_string()), b"").unwrap();
    }
    let mut busy = runner.connect();
    let mut other = runner.connect();
    // Counted in turns and not in time, which a busy machine stretches: a runner that did it all in one
    // step would answer once or twice before the end.
    let mut turns_until = |ended: &dyn Fn() -> bool| {
        let mut turns = 0;
        while !ended() {
            other.call("ping", json!({})).unwrap();
            turns += 1;
        }
        turns
    };
    let list = busy.open("fs.list", json!({ "path": "wide", "limit": 5000 }));
    let turns = turns_until(&|| has_something_to_read(&busy));
    assert!(turns > 4, "{turns} while listing");
    assert!(busy.finish(list).end.is_ok());
    let remove = busy.open("fs.remove", json!({ "path": "wide", "recursive": true }));
    let turns = turns_until(&|| !wide.exists());
    assert!(turns > 4, "{turns} while removing");
    assert_eq!(busy.finish(remove).end.unwrap()["removed"], json!(20_001));
}

fn has_something_to_read(client: &Client) -> bool {
    let mut byte = 0u8;
    let (place, flags) = (&mut byte as *mut u8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: recv writes one byte into a variable that outlives the call.
    unsafe { libc::recv(client.socket.as_raw_fd(), place.cast(), 1, flags) != -1 }
}

#[test]
fn watch_reports_changes_by_a_command_and_ends_with_cancel() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.open("fs.watch", json!({ "path": "." }));
    let event = |client: &mut Client| -> Value {
        let frame = client.next(stream);
        assert_eq!(frame.kind, EVENT);
        serde_json::from_slice(&frame.body).unwrap()
    };
    assert_eq!(event(&mut client), json!({ "event": "watching" }));
    fs::create_dir(runner.workspace().join("new")).unwrap();
    fs::write(runner.workspace().join("new/file"), b"").unwrap();
    let workspace = fs::canonicalize(runner.workspace()).unwrap();
    for (name, is_dir) in [("new", true), ("new/file", false)] {
        let path = workspace.join(name);
        assert_eq!(
            event(&mut client),
            json!({ "event": "change", "change": "created", "path": path.to_str().unwrap(), "is_dir": is_dir })
        );
    }
    client.send(CANCEL, stream, b"");
    assert_eq!(client.finish(stream).code(), "cancelled");
}

#[test]
fn tree_survives_a_round_trip_as_an_archive() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let tree = runner.workspace().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/big"), vec![4u8; 3_000_000]).unwrap();
    fs::write(tree.join("a\nb"), b"odd").unwrap();
    symlink("sub/big", tree.join("link")).unwrap();
    let out = download(&mut client, "fs.tar_out", json!({ "path": "tree" }));
    assert_eq!(out.end, Ok(json!({ "entries": 5, "bytes": 3_000_003 })));
    let answer = upload(
        &mut client,
        "fs.tar_in",
        json!({ "path": "copy" }),
        &out.data,
    );
    assert_eq!(answer, Ok(json!({ "entries": 5, "bytes": 3_000_003 })));
    let copy = runner.workspace().join("copy");
    assert_eq!(names(&copy), ["a\nb", "link", "sub"]);
    assert_eq!(fs::metadata(copy.join("link")).unwrap().len(), 3_000_000);
}

#[test]
fn paths_that_would_hang_or_leak_are_refused_at_once() {
    let mut runner = Runner::start();
    let mut client = runner.connect();
    let fifo = runner.workspace().join("fifo");
    let made = std::process::Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .unwrap();
    assert!(made.success());
    for path in [
        "fifo",
        "/dev/zero",
        "/proc/self/mem",
        "/proc/1/mem",
        "/proc/self/root",
        "/proc/self/fd/0",
        "/proc/self/root/etc/passwd",
        "/proc/kmsg",
    ] {
        assert_eq!(
            client.refused("fs.read", json!({ "path": path })),
            "not_regular",
            "{path}"
        );
    }
    for (path, code) in [("", "invalid"), ("a\0b", "invalid"), ("none", "not_found")] {
        assert_eq!(client.refused("fs.read", json!({ "path": path })), code);
    }
    assert_eq!(
        client.refused("fs.read", json!({ "path": "x".repeat(5000) })),
        "name_too_long"
    );
    runner.assert_alive();
}

#[test]
fn denied_and_outside_paths_are_blocked_on_their_real_path() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let workspace = fs::canonicalize(runner.workspace()).unwrap();
    symlink("/etc", workspace.join("etc")).unwrap();
    let within = json!([workspace.to_str().unwrap()]);
    let deny = json!(["/etc/passwd", "/root"]);
    let ask = |path: &str| json!({ "path": path, "within": within, "deny": deny });
    assert_eq!(client.refused("fs.read", ask("etc/passwd")), "blocked");
    assert_eq!(client.refused("fs.stat", ask("/root/anything")), "blocked");
    assert_eq!(client.refused("fs.mkdir", ask("etc/new")), "blocked");
    assert_eq!(
        upload(&mut client, "fs.write", ask("etc/new"), b"x")
            .unwrap_err()
            .code(),
        "blocked"
    );
    assert_eq!(client.refused("fs.remove", ask("etc/hostname")), "blocked");
    assert!(client.call("fs.read", ask("etc/hostname")).is_ok());
    assert!(upload(&mut client, "fs.write", ask("fine"), b"x").is_ok());
}

#[test]
fn with_a_user_files_are_accessed_as_that_user() {
    // SAFETY: getuid only reads.
    if unsafe { libc::getuid() } != 0 {
        eprintln!("only root can become another user");
        return;
    }
    let runner = Runner::with(&["--user", "65534:65534"]);
    let workspace = runner.workspace();
    give(&workspace, 65534);
    let mut client = runner.connect();
    let entry = upload(&mut client, "fs.write", json!({ "path": "mine" }), b"x").unwrap();
    assert_eq!(
        (&entry["uid"], &entry["gid"], &entry["mode"]),
        (&json!(65534), &json!(65534), &json!(0o644))
    );
    fs::write(workspace.join("roots"), b"secret").unwrap();
    fs::set_permissions(workspace.join("roots"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(
        client.refused("fs.read", json!({ "path": "roots" })),
        "permission"
    );
    assert_eq!(
        client.refused("fs.list", json!({ "path": "/root" })),
        "permission"
    );
    assert_eq!(
        client.refused("fs.mkdir", json!({ "path": "/etc/mine" })),
        "permission"
    );
    client
        .call("fs.mkdir", json!({ "path": "shut/in", "mode": 0o700 }))
        .unwrap();
    fs::set_permissions(workspace.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    let gone = client.call("fs.remove", json!({ "path": "shut", "recursive": true }));
    assert_eq!(gone, Ok(json!({ "removed": 2 })));
    assert_eq!(fs::metadata(workspace.join("mine")).unwrap().uid(), 65534);
    // A policy needs /proc/self/fd, which belongs to root in a process that is not dumpable.
    let real = fs::canonicalize(&workspace).unwrap();
    let asked = json!({ "path": "two", "within": [real.to_str().unwrap()], "deny": ["/root"] });
    assert!(upload(&mut client, "fs.write", asked, b"x").is_ok());
}

/// Runs the rest of its arguments with a workspace of 1 MiB in a mount namespace of its own.
const SMALL: &str = r#"for word; do [ "$last" = --workspace ] && space=$word; last=$word; done
mount -t tmpfs -o size=1m,nr_inodes=40 none "$space" && exec "$@""#;

#[test]
fn full_disk_is_no_space_and_leaves_nothing_half_made() {
    // SAFETY: getuid only reads.
    if unsafe { libc::getuid() } != 0 {
        eprintln!("only root can mount");
        return;
    }
    let mut runner = Runner::under(&["unshare", "-m", "sh", "-c", SMALL, "sh"], &[]);
    let mut client = runner.connect();
    let content = vec![7u8; 5_000_000];
    let list = |client: &mut Client| -> Vec<String> {
        let page = client
            .call("fs.list", json!({ "path": ".", "recursive": true }))
            .unwrap();
        let entries = page["entries"].as_array().unwrap().clone();
        entries
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect()
    };
    upload(&mut client, "fs.write", json!({ "path": "old" }), b"old").unwrap();
    for request in [
        json!({ "path": "old" }),
        json!({ "path": "new/deep" }),
        json!({ "path": "old", "size": 5_000_000 }),
    ] {
        let refused = upload(&mut client, "fs.write", request, &content).unwrap_err();
        assert_eq!(
            (refused.code(), &refused.0["errno"]),
            ("no_space", &json!(libc::ENOSPC))
        );
        assert_eq!(list(&mut client), ["old"]);
    }
    let source = Runner::start();
    fs::write(source.workspace().join("big"), &content).unwrap();
    let archive = download(&mut source.connect(), "fs.tar_out", json!({ "path": "." })).data;
    let refused = upload(&mut client, "fs.tar_in", json!({ "path": "in" }), &archive).unwrap_err();
    assert_eq!(refused.code(), "no_space");
    assert_eq!(list(&mut client), ["in", "old"]);
    // A move from another file system needs the space as well, and leaves its source alone.
    let big = source.workspace().join("big");
    let request = json!({ "source": big.to_str().unwrap(), "destination": "big" });
    assert_eq!(client.refused("fs.move", request), "no_space");
    assert_eq!(list(&mut client), ["in", "old"]);
    assert_eq!(fs::metadata(&big).unwrap().len(), 5_000_000);
    let full = (0..50).find_map(|number| {
        let request = json!({ "path": format!("d{number}") });
        client.call("fs.mkdir", request).err()
    });
    assert_eq!(full.unwrap().code(), "no_space");
    let read = download(&mut client, "fs.read", json!({ "path": "old" }));
    assert_eq!(read.data, b"old");
    runner.assert_alive();
}

#[test]
fn without_proc_a_policy_is_refused_and_everything_else_works() {
    // SAFETY: getuid only reads.
    if unsafe { libc::getuid() } != 0 {
        eprintln!("only root can unmount");
        return;
    }
    let script = r#"umount -l /proc && exec "$@""#;
    let mut runner = Runner::under(&["unshare", "-m", "sh", "-c", script, "sh"], &[]);
    let mut client = runner.connect();
    let rules = json!({ "path": "a", "deny": ["/root"] });
    assert_eq!(
        upload(&mut client, "fs.write", rules, b"x")
            .unwrap_err()
            .code(),
        "blocked"
    );
    let within = json!({ "path": "a", "within": [runner.workspace().to_str().unwrap()] });
    assert_eq!(
        upload(&mut client, "fs.write", within, b"x")
            .unwrap_err()
            .code(),
        "blocked"
    );
    upload(&mut client, "fs.write", json!({ "path": "dir/a" }), b"x").unwrap();
    let denied = json!({ "path": "dir/a", "deny": ["/root"] });
    assert_eq!(client.refused("fs.read", denied), "blocked");
    assert_eq!(
        download(&mut client, "fs.read", json!({ "path": "dir/a" })).data,
        b"x"
    );
    let archive = download(&mut client, "fs.tar_out", json!({ "path": "dir" })).data;
    upload(
        &mut client,
        "fs.tar_in",
        json!({ "path": "copy" }),
        &archive,
    )
    .unwrap();
    assert_eq!(names(&runner.workspace()), ["copy", "dir"]);
    let stream = client.open("fs.watch", json!({ "path": "dir" }));
    assert_eq!(client.next(stream).body, br#"{"event":"watching"}"#);
    client
        .call(
            "fs.move",
            json!({ "source": "copy", "destination": "dir/copy" }),
        )
        .unwrap();
    let event: Value = serde_json::from_slice(&client.next(stream).body).unwrap();
    assert_eq!(event["change"], json!("created"));
    let gone = client.call("fs.remove", json!({ "path": "dir", "recursive": true }));
    assert_eq!(gone, Ok(json!({ "removed": 4 })));
    runner.assert_alive();
}

#[test]
fn erase_removes_a_tree_without_following_links() {
    let top = std::env::temp_dir().join(format!("sk-erase-{}", std::process::id()));
    let tree = top.join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(top.join("kept")).unwrap();
    fs::write(top.join("kept/file"), "kept").unwrap();
    symlink(top.join("kept"), tree.join("a/link")).unwrap();
    let erase = |path: &Path| {
        let mut command = std::process::Command::new(program());
        command.arg("--erase").arg(path).status().unwrap().code()
    };
    assert_eq!(erase(&tree), Some(0));
    assert!(!tree.exists() && top.join("kept/file").exists());
    // Twice is fine; a relative path and a root are not.
    assert_eq!(erase(&tree), Some(0));
    assert_eq!(erase("tree".as_ref()), Some(1));
    assert_eq!(erase("/tree".as_ref()), Some(1));
    fs::remove_dir_all(&top).unwrap();
}
