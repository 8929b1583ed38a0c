//! A component of the path is swapped for a symlink to the outside, all the time, while verbs run.
//!
//! `SANDKASTEN_SWAPS` is how many requests each verb makes meanwhile; the swapper makes many more.

use super::{count_of, Place};
use rustix::fs::{renameat_with, RenameFlags, CWD};
use serde_json::{json, Value};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

fn exchange(one: &Path, other: &Path) {
    let _raced = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
}

impl Swapper {
    /// Exchange `in/dir` (a directory) and `in/link` (a symlink to `out`) for ever.
    fn new(place: &Place) -> Swapper {
        for dir in ["in/dir", "out"] {
            place.ok("fs.mkdir", json!({ "path": dir }));
        }
        place.put("in/dir/file", b"inside");
        place.put("out/file", b"SECRET");
        symlink("../out", place.path("in/link")).unwrap();
        let (dir, link) = (place.path("in/dir"), place.path("in/link"));
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicUsize::new(0));
        let (stopped, counted) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                exchange(&dir, &link);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Swapper {
            stop,
            swaps,
            thread: Some(thread),
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        println!("{} swaps", self.swaps.load(Ordering::Relaxed));
    }
}

fn rounds() -> usize {
    count_of("SANDKASTEN_SWAPS", 2000)
}

fn rules(place: &Place, path: &str) -> Value {
    json!({ "path": path, "within": [place.text("in")], "deny": [place.text("out")] })
}

/// Run `act` while the swapper works; both a success and a refusal must occur, or the race was not a
/// race.
fn race(place: &Place, mut act: impl FnMut(usize) -> Result<(), &'static str>) {
    let swapper = Swapper::new(place);
    let (mut good, mut refused) = (0, 0);
    for round in 0.. {
        match act(round) {
            Ok(()) => good += 1,
            Err("blocked") => refused += 1,
            // The name is missing between two links.
            Err(
                "not_found" | "not_directory" | "exists" | "loop" | "invalid" | "busy"
                | "not_regular",
            ) => {}
            Err(code) => panic!("{}", code),
        }
        if round >= rounds() && (good > 0 && refused > 0 || round > 20 * rounds()) {
            break;
        }
    }
    drop(swapper);
    println!("{} good, {} refused", good, refused);
    assert!(
        good > 0 && refused > 0,
        "{} good, {} refused",
        good,
        refused
    );
    assert_eq!(place.get("out/file"), b"SECRET");
    assert_eq!(place.names("out"), ["file"]);
}

#[test]
fn swapped_component_never_lets_a_read_out() {
    let place = Place::new();
    race(&place, |_| {
        let out = place.run("fs.read", rules(&place, "in/dir/file"));
        assert!(!out.data.windows(6).any(|part| part == b"SECRET"));
        out.outcome
            .unwrap()
            .map(drop)
            .map_err(|failure| failure.code)
    });
}

#[test]
fn swapped_component_never_lets_a_stat_or_a_list_out() {
    let place = Place::new();
    let out_text = place.text("out");
    race(&place, |round| {
        let (verb, path) = if round % 2 == 0 {
            ("fs.stat", "in/dir/file")
        } else {
            ("fs.list", "in/dir")
        };
        let outcome = place.run(verb, rules(&place, path)).outcome.unwrap();
        outcome
            .map(|answer| assert!(!answer.to_string().contains(&out_text), "{}", answer))
            .map_err(|failure| failure.code)
    });
}

#[test]
fn swapped_component_never_lets_a_write_out() {
    let place = Place::new();
    race(&place, |_| {
        let out = place.run_with("fs.write", &rules(&place, "in/dir/file"), b"written", 7);
        out.outcome
            .unwrap()
            .map(drop)
            .map_err(|failure| failure.code)
    });
    assert_eq!(
        place.get("in/dir/file").len() + place.get("in/link/file").len(),
        13
    );
}

#[test]
fn swapped_component_never_lets_mkdir_or_move_out() {
    let place = Place::new();
    race(&place, |round| {
        let outcome = if round % 2 == 0 {
            let path = format!("in/dir/new/{}", round % 10);
            place.run("fs.mkdir", rules(&place, &path)).outcome.unwrap()
        } else {
            place.put("in/carry", b"");
            let mut request = rules(&place, "x");
            request["source"] = json!("in/carry");
            request["destination"] = json!("in/dir/carried");
            request["overwrite"] = json!(true);
            place.run("fs.move", request).outcome.unwrap()
        };
        outcome.map(drop).map_err(|failure| failure.code)
    });
}

#[test]
fn swapped_component_never_lets_remove_out() {
    let place = Place::new();
    race(&place, |round| {
        if round % 3 == 0 {
            // The directory has one of two names at any time; creating through the other would change
            // the outside, so it is created beside and moved in by the verb under test.
            place.run_with("fs.write", &rules(&place, "in/dir/file"), b"again!", 6);
        }
        let outcome = place
            .run("fs.remove", rules(&place, "in/dir/file"))
            .outcome
            .unwrap();
        outcome.map(drop).map_err(|failure| failure.code)
    });
}

#[test]
fn swapped_component_never_lets_an_archive_in_or_out() {
    let place = Place::new();
    place.put("pack/sub/file", b"packed");
    let archive = place.run("fs.tar_out", json!({ "path": "pack" })).data;
    race(&place, |round| {
        if round % 2 == 0 {
            // Below `in`: the parent of the member itself is swapped.
            let outcome = place
                .run_with("fs.tar_in", &rules(&place, "in/dir"), &archive, 1 << 20)
                .outcome
                .unwrap();
            outcome.map(drop).map_err(|failure| failure.code)
        } else {
            let out = place.run("fs.tar_out", rules(&place, "in/dir"));
            assert!(!out.data.windows(6).any(|part| part == b"SECRET"));
            out.outcome
                .unwrap()
                .map(drop)
                .map_err(|failure| failure.code)
        }
    });
}

#[test]
fn members_below_a_swapped_directory_stay_below_the_path() {
    let place = Place::new();
    place.put("pack/dir/planted", b"x");
    let archive = place.run("fs.tar_out", json!({ "path": "pack" })).data;
    race(&place, |_| {
        let out = place.run_with("fs.tar_in", &rules(&place, "in"), &archive, 1 << 20);
        out.outcome
            .unwrap()
            .map(drop)
            .map_err(|failure| failure.code)
    });
    assert!(fs::metadata(place.path("out/planted")).is_err());
}
