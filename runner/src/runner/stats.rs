//! Figures about the sandbox as a whole, as far as they can be seen from inside.

use crate::processes;
use crate::server::Server;
use crate::sys;
use serde_json::{json, Map, Value};

pub fn collect(server: &Server) -> Value {
    let mut disk = Map::new();
    let places: [&[u8]; 3] = [&server.config.workspace, b"/tmp", &server.config.home];
    for path in places {
        if let Some(figures) = space(path) {
            disk.insert(String::from_utf8_lossy(path).into_owned(), figures);
        }
    }
    let mut body = json!({
        "uptime_ms": sys::boot_ns().saturating_sub(server.started_ns) / 1_000_000,
        "processes": processes::pids().map_or(0, |pids| pids.len()),
        "running": server.active(),
        "shells": server.shells.len(),
        "connections": server.connections.len(),
        "disk": disk,
    });
    if let Some(load) = load() {
        body["load"] = load;
    }
    body
}

fn space(path: &[u8]) -> Option<Value> {
    let path = sys::c_string(path).ok()?;
    // SAFETY: an all-zero statvfs is a valid value to be overwritten.
    let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    sys::check(unsafe { libc::statvfs(path.as_ptr(), &mut figures) }).ok()?;
    let block = figures.f_frsize as u64;
    let total = figures.f_blocks as u64 * block;
    let free = figures.f_bfree as u64 * block;
    Some(json!({
        "total": total,
        "used": total.saturating_sub(free),
        "free": figures.f_bavail as u64 * block,
        "inodes": figures.f_files as u64,
        "inodes_free": figures.f_ffree as u64,
    }))
}

/// Load averages in thousandths: numbers of the protocol are integers.
fn load() -> Option<Value> {
    let text = sys::read_file(b"/proc/loadavg", 128).ok()?;
    let text = String::from_utf8(text).ok()?;
    let thousandths = |word: &str| word.parse::<f64>().ok().map(|load| (load * 1000.0) as u64);
    let figures: Option<Vec<u64>> = text.split(' ').take(3).map(thousandths).collect();
    figures.map(Value::from)
}
