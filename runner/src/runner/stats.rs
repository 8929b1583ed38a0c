//! Numbers about the sandbox as a whole, as far as they can be seen from inside.

use crate::processes;
use crate::sys;
use serde_json::{json, Map, Value};

/// Counts from the server, and what to measure.
pub struct Counts<'a> {
    pub started_ns: u64,
    pub running: usize,
    pub shells: usize,
    pub connections: usize,
    /// Directories whose file systems are measured.
    pub directories: [&'a [u8]; 3],
}

pub fn collect(counts: &Counts) -> Value {
    let mut disk = Map::new();
    for path in counts.directories {
        if let Some(space) = space(path) {
            disk.insert(String::from_utf8_lossy(path).into_owned(), space);
        }
    }
    let mut body = json!({
        "uptime_ms": sys::boot_ns().saturating_sub(counts.started_ns) / 1_000_000,
        "processes": processes::pids().map_or(0, |pids| pids.len()),
        "running": counts.running,
        "shells": counts.shells,
        "connections": counts.connections,
        "disk": disk,
    });
    if let Some(load) = load() {
        body["load"] = load;
    }
    body
}

fn space(path: &[u8]) -> Option<Value> {
    let numbers = rustix::fs::statvfs(path).ok()?;
    let block = numbers.f_frsize;
    let total = numbers.f_blocks * block;
    let free = numbers.f_bfree * block;
    Some(json!({
        "total": total,
        "used": total.saturating_sub(free),
        "free": numbers.f_bavail * block,
        "inodes": numbers.f_files,
        "inodes_free": numbers.f_ffree,
    }))
}

/// Return the load averages in thousandths: numbers of the protocol are integers.
fn load() -> Option<Value> {
    let text = sys::read_file(b"/proc/loadavg", 128).ok()?;
    let text = String::from_utf8(text).ok()?;
    let thousandths = |word: &str| word.parse::<f64>().ok().map(|load| (load * 1000.0) as u64);
    let numbers: Option<Vec<u64>> = text.split(' ').take(3).map(thousandths).collect();
    numbers.map(Value::from)
}
