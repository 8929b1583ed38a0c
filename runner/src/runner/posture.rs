//! `--posture`: what this process may do and see, as one JSON object on standard output.
//!
//! Run as a command of the user, for a host that cannot look at the sandbox from outside. It needs no
//! program of the image. A value that this kernel does not report is left out or null, never invented.

use serde_json::{json, Map, Value};
use std::io;
use std::path::Path;

const FIELDS: [&str; 10] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
];

pub fn describe() -> io::Result<Value> {
    let oom = std::fs::read_to_string("/proc/self/oom_score_adj");
    Ok(json!({
        "status": status(&text("/proc/self/status")?),
        "mountinfo": text("/proc/self/mountinfo")?,
        "namespaces": namespaces()?,
        "descriptors": descriptors()?,
        "oom_score_adj": oom.ok().and_then(|text| text.trim().parse::<i64>().ok()),
    }))
}

/// Read a file of /proc. Names of mount points are bytes; the rest is text.
fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

fn status(text: &str) -> Map<String, Value> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let wanted = pairs.filter(|(name, _)| FIELDS.contains(name));
    wanted
        .map(|(name, value)| (name.to_owned(), Value::from(value.trim())))
        .collect()
}

fn namespaces() -> io::Result<Map<String, Value>> {
    let mut found = Map::new();
    for entry in std::fs::read_dir("/proc/self/ns")? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path());
        let target = target.map(|target| target.to_string_lossy().into_owned());
        let name = entry.file_name().to_string_lossy().into_owned();
        found.insert(name, target.ok().map_or(Value::Null, Value::from));
    }
    Ok(found)
}

/// Return the descriptors that are still open after the listing, which uses one itself.
fn descriptors() -> io::Result<Vec<i32>> {
    let mut listed = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        listed.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok()),
        );
    }
    let still = |fd: &i32| {
        Path::new(&format!("/proc/self/fd/{fd}"))
            .symlink_metadata()
            .is_ok()
    };
    let mut open: Vec<i32> = listed.into_iter().filter(still).collect();
    open.sort_unstable();
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_inside_a_value_is_not_a_field() {
        let found = status("Name:\tUid:\nUid:\t1\t2\t3\t4\nGroups:\t \nVmPeak: 3 kB\nUidx: 1\n");
        let found: Vec<_> = found
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(found, [("Groups", Some("")), ("Uid", Some("1\t2\t3\t4"))]);
    }
}
