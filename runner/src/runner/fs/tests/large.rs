//! Deep, wide and huge: depth 5,000, many entries, sparse terabytes.

use super::{count_of, drive, Place, Recorder};
use crate::sys;
use serde_json::{json, Value};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Make a chain of directories, each with one file, that is too long for a path.
fn dig(place: &Place, depth: usize, name: &str) {
    let mut dir = sys::open(place.root.as_os_str().as_bytes(), libc::O_RDONLY, 0).unwrap();
    for _ in 0..depth {
        sys::make_dir_at(sys::as_fd(&dir), name.as_bytes(), 0o755).unwrap();
        dir = sys::open_at(sys::as_fd(&dir), name.as_bytes(), libc::O_RDONLY, 0).unwrap();
        sys::open_at(sys::as_fd(&dir), b"file", libc::O_CREAT, 0o644).unwrap();
    }
}

fn list_all(place: &Place, request: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let mut request = request.clone();
    loop {
        let page = place.ok("fs.list", request.clone());
        all.extend(page["entries"].as_array().unwrap().iter().cloned());
        if page["next"].is_null() {
            return all;
        }
        request["cursor"] = page["next"].clone();
    }
}

/// The limit on descriptors is per process, so it is counted here without disturbing other tests.
fn descriptors_while(work: impl FnOnce()) -> usize {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = stop.clone();
    let watcher = std::thread::spawn(move || {
        let mut most = 0;
        while !seen.load(std::sync::atomic::Ordering::Relaxed) {
            most = most.max(super::open_descriptors());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        most
    });
    work();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    watcher.join().unwrap()
}

#[test]
fn tree_too_deep_for_a_path_is_listed_archived_and_removed() {
    let place = Place::new();
    // Part of the work grows with the square of the depth.
    let depth = count_of("SANDKASTEN_DEPTH", 2500);
    let entries = 2 * depth;
    dig(&place, depth, "d");
    let most = descriptors_while(|| {
        let all = list_all(
            &place,
            &json!({ "path": ".", "recursive": true, "limit": 5000 }),
        );
        assert_eq!(all.len(), entries);
        let deepest = all
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().len())
            .max();
        assert!(deepest.unwrap() > 2 * depth);
        let out = place.run("fs.tar_out", json!({ "path": "d" }));
        assert_eq!(
            out.outcome.unwrap().unwrap(),
            json!({ "entries": entries, "bytes": 0 })
        );
        let answer = place.run_with("fs.tar_in", &json!({ "path": "copy" }), &out.data, 1 << 18);
        assert_eq!(answer.outcome.unwrap().unwrap()["entries"], json!(entries));
        let gone = place.ok("fs.remove", json!({ "path": "d", "recursive": true }));
        assert_eq!(gone, json!({ "removed": entries }));
        let gone = place.ok("fs.remove", json!({ "path": "copy", "recursive": true }));
        assert_eq!(gone, json!({ "removed": entries }));
    });
    assert!(most < 300, "{} descriptors", most);
    assert_eq!(place.names(""), [""; 0]);
}

#[test]
fn deep_tree_moves_across_file_systems() {
    let place = Place::new();
    dig(&place, 1000, "level");
    let other = match fs::metadata("/dev/shm") {
        Ok(_) => Place::at(std::path::Path::new("/dev/shm"), 1 << 21),
        Err(_) => return,
    };
    place.ok(
        "fs.move",
        json!({ "source": "level", "destination": other.text("new") }),
    );
    assert_eq!(place.names(""), [""; 0]);
    let all = list_all(
        &other,
        &json!({ "path": "new", "recursive": true, "limit": 5000 }),
    );
    assert_eq!(all.len(), 1999);
}

#[test]
fn names_of_255_bytes_are_listed_as_far_as_a_page_allows() {
    let place = Place::new();
    let name = "n".repeat(255);
    dig(&place, 100, &name);
    let all = list_all(&place, &json!({ "path": ".", "recursive": true }));
    assert_eq!(all.len(), 200);
    let out = place.run("fs.tar_out", json!({ "path": "." }));
    let answer = place.run_with("fs.tar_in", &json!({ "path": "copy" }), &out.data, 1 << 20);
    assert_eq!(answer.outcome.unwrap().unwrap()["entries"], json!(201));
    let copied = list_all(&place, &json!({ "path": "copy", "recursive": true }));
    assert_eq!(copied.len(), 200);
}

#[test]
fn pages_of_a_wide_directory_are_in_order_and_without_repeats() {
    let count = count_of("SANDKASTEN_WIDE", 8_000);
    let place = Place::new();
    place.ok("fs.mkdir", json!({ "path": "wide" }));
    for number in 0..count {
        fs::write(place.path(&format!("wide/{}", number * 7919 % count)), b"").unwrap();
    }
    let began = Instant::now();
    let all = list_all(&place, &json!({ "path": "wide", "limit": 5000 }));
    println!("{} entries in {:?}", count, began.elapsed());
    let names: Vec<&str> = all
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    let mut expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    expected.sort();
    assert_eq!(names, expected);
    let gone = place.ok("fs.remove", json!({ "path": "wide", "recursive": true }));
    assert_eq!(gone, json!({ "removed": count + 1 }));
}

#[test]
fn remaining_entries_are_listed_once_while_others_come_and_go() {
    let place = Place::new();
    place.ok("fs.mkdir", json!({ "path": "d" }));
    for number in 0..1000 {
        place.put(&format!("d/stay-{:05}", number), b"");
    }
    let dir = place.path("d");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = stop.clone();
    let churn = std::thread::spawn(move || {
        for round in 0.. {
            let path = dir.join(format!("stay-{:05}-gone", round * 37 % 1000));
            fs::write(&path, b"").unwrap();
            if round % 3 != 0 {
                fs::remove_file(&path).unwrap();
            }
            if seen.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
        }
    });
    for _ in 0..3 {
        let all = list_all(&place, &json!({ "path": "d", "limit": 100 }));
        let stayed = all
            .iter()
            .filter(|entry| !entry["name"].as_str().unwrap().ends_with("gone"))
            .count();
        assert_eq!(stayed, 1000);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    churn.join().unwrap();
}

#[test]
fn sparse_terabyte_is_read_in_ranges_and_refused_as_a_whole() {
    let place = Place::new();
    let file = fs::File::create(place.path("huge")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(
        place.ok("fs.stat", json!({ "path": "huge" }))["size"],
        json!(1u64 << 40)
    );
    let range = json!({ "path": "huge", "offset": (1u64 << 40) - 10, "limit": 4096 });
    let out = place.run("fs.read", range);
    assert_eq!(
        (out.data, out.outcome.unwrap().unwrap()["bytes"].clone()),
        (vec![0; 10], json!(10))
    );
    assert_eq!(
        place.code("fs.read", json!({ "path": "huge", "max": 10_000_000 })),
        "too_large"
    );
    place.ok("fs.remove", json!({ "path": "huge" }));
}

#[test]
fn fifty_megabytes_pass_quickly() {
    let place = Place::new();
    let content = vec![5u8; 50_000_000];
    let began = Instant::now();
    let out = place.run_with("fs.write", &json!({ "path": "big" }), &content, 1 << 20);
    out.outcome.unwrap().unwrap();
    let written = began.elapsed();
    let began = Instant::now();
    let mut out = Recorder::new();
    out.keep_data = false;
    let mut handler = place.open("fs.read", &json!({ "path": "big" })).unwrap();
    drive(handler.as_mut(), b"", 1, &mut out);
    println!("50 MB: write {:?}, read {:?}", written, began.elapsed());
    assert_eq!(out.sent, 50_000_000);
}
