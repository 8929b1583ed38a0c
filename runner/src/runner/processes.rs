//! Processes, as /proc lists them. Its content is partly chosen by user code and parsed accordingly.

use crate::sys::{self, Errno};
use crate::wire::bytes;
use crate::wire::protocol;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::os::unix::io::OwnedFd;

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: i32,
    pub ppid: i32,
    pub group: i32,
    pub state: u8,
    pub threads: u64,
    pub cpu_ticks: u64,
    /// Processor time of its children that ended and were waited for, and of theirs.
    pub child_ticks: u64,
    /// Start time in clock ticks since boot; with the pid it identifies one process.
    pub start: u64,
    pub rss_pages: u64,
    pub name: Vec<u8>,
}

impl Process {
    /// False for a zombie. A dead main thread with living siblings shows `Z` and several threads.
    pub fn alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }
}

pub fn pids() -> Result<Vec<i32>, Errno> {
    let entries = std::fs::read_dir("/proc").map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

pub fn stat(pid: i32) -> Option<Process> {
    let text = sys::read_file(format!("/proc/{pid}/stat").as_bytes(), 4096).ok()?;
    parse_stat(pid, &text)
}

/// Parse /proc/<pid>/stat. The name stands in parentheses and may itself contain them, spaces and
/// newlines.
fn parse_stat(pid: i32, text: &[u8]) -> Option<Process> {
    let open = text.iter().position(|&c| c == b'(')?;
    let close = text.iter().rposition(|&c| c == b')')?;
    let name = text.get(open + 1..close)?.to_vec();
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
    Some(Process {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        ppid: number(1)? as i32,
        group: number(2)? as i32,
        cpu_ticks: (number(11)? + number(12)?).max(0) as u64,
        child_ticks: (number(13)? + number(14)?).max(0) as u64,
        threads: number(17)?.max(0) as u64,
        start: number(19)?.max(0) as u64,
        rss_pages: number(21)?.max(0) as u64,
        name,
    })
}

pub fn all() -> Result<Vec<Process>, Errno> {
    Ok(pids()?.into_iter().filter_map(stat).collect())
}

/// Return the direct children of a single-threaded process; `None` where the kernel does not list them.
pub fn children(pid: i32) -> Option<Vec<i32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = sys::read_file(path.as_bytes(), 1 << 20).ok()?;
    let text = std::str::from_utf8(&text).ok()?;
    Some(
        text.split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect(),
    )
}

/// Return the processes below one, at most `most` of them.
pub fn below(top: i32, most: usize) -> Vec<Process> {
    if children(top).is_none() {
        return below_in(top, most, &all().unwrap_or_default());
    }
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![top];
    while let Some(parent) = parents.pop() {
        for child in children(parent).unwrap_or_default() {
            if found.len() >= most {
                return found;
            }
            parents.push(child);
            found.extend(stat(child));
        }
    }
    found
}

/// The same where the kernel does not list children.
fn below_in(top: i32, most: usize, all: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![top];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|process| process.ppid == parent) {
            if found.len() >= most {
                return found;
            }
            parents.push(child.pid);
            found.push(child.clone());
        }
    }
    found
}

/// Return the largest resident size that the process has had; gVisor lists only the present one.
pub fn peak_rss_bytes(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.pid);
    let text = sys::read_file(path.as_bytes(), 8192).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // The name of the process, which user code chooses, has its line feeds escaped.
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let listed = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    listed.map_or_else(|| rss_bytes(process), |kb| kb.saturating_mul(1024))
}

pub fn rss_bytes(process: &Process) -> u64 {
    process
        .rss_pages
        .saturating_mul(constant(libc::_SC_PAGESIZE))
}

/// Return a constant of this system by its number in `sysconf`.
pub fn constant(name: libc::c_int) -> u64 {
    // SAFETY: sysconf only reads.
    unsafe { libc::sysconf(name) }.max(1) as u64
}

/// Return a descriptor that is readable when a child has died, if SIGCHLD is blocked.
pub fn child_signals() -> Result<OwnedFd, Errno> {
    // SAFETY: a zeroed set is initialised by sigemptyset before it is used.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    sys::check(fd).map(sys::own)
}

/// Return when the process started, in milliseconds since boot.
pub fn started_ms(process: &Process) -> u64 {
    process.start.saturating_mul(1000) / constant(libc::_SC_CLK_TCK)
}

/// Which command each process belongs to, for `proc.list`.
pub struct Owners {
    /// Supervisor pid → the command that it carries, and when that began (unix ms).
    pub by_supervisor: HashMap<i32, (String, u64)>,
}

pub fn list(owners: &Owners) -> Value {
    let found = all().unwrap_or_default();
    let parents: HashMap<i32, i32> = found.iter().map(|p| (p.pid, p.ppid)).collect();
    let ticks = constant(libc::_SC_CLK_TCK);
    let boot_unix_ms = sys::unix_ms().saturating_sub(sys::boot_ns() / 1_000_000);
    let truncated = found.len() > protocol::MAX_PROCESSES;
    let mut rows = Vec::new();
    // A result frame holds 1 MiB; hostile command lines must not exceed it.
    let mut budget = 800_000usize;
    let mut cut = truncated;
    for process in found.iter().take(protocol::MAX_PROCESSES) {
        // It ended since it was listed.
        let Some((uid, cmdline, json_size)) = describe(process.pid) else {
            continue;
        };
        if json_size + 400 > budget {
            cut = true;
            break;
        }
        budget -= json_size + 400;
        let started_ms = boot_unix_ms + started_ms(process);
        let mut row = json!({
            "pid": process.pid,
            "ppid": process.ppid,
            "uid": uid,
            "state": char::from(process.state).to_string(),
            "name": bytes::to_json(&process.name),
            "cmdline": cmdline,
            "rss_bytes": rss_bytes(process),
            "cpu_ms": process.cpu_ticks * 1000 / ticks,
            "started_ms": started_ms,
            "threads": process.threads,
        });
        if let Some(exec_id) = owner_of(process.pid, started_ms, &parents, owners) {
            row["exec_id"] = Value::from(exec_id);
        }
        rows.push(row);
    }
    json!({"processes": rows, "truncated": cut})
}

fn owner_of<'a>(
    pid: i32,
    started_ms: u64,
    parents: &HashMap<i32, i32>,
    owners: &'a Owners,
) -> Option<&'a str> {
    let mut at = pid;
    for _ in 0..parents.len() {
        at = *parents.get(&at)?;
        if let Some((exec_id, since)) = owners.by_supervisor.get(&at) {
            return began_since(started_ms, *since).then_some(exec_id.as_str());
        }
    }
    None
}

/// Report whether a process that started at the one time can belong to a command that began at the other.
/// Start times count in ticks of 10 ms.
pub fn began_since(started_ms: u64, since_ms: u64) -> bool {
    started_ms + 20 >= since_ms
}

/// Return `(uid, command line, how many bytes of JSON that may take)`.
fn describe(pid: i32) -> Option<(Value, Vec<Value>, usize)> {
    let uid = Value::from(
        sys::stat_link(format!("/proc/{pid}").as_bytes())
            .ok()?
            .st_uid,
    );
    let path = format!("/proc/{pid}/cmdline");
    let raw = sys::read_file(path.as_bytes(), protocol::MAX_CMDLINE).unwrap_or_default();
    let mut json_size = raw.len() * 6;
    let mut words: Vec<&[u8]> = raw.split(|&c| c == 0).collect();
    if words.last().is_some_and(|word| word.is_empty()) {
        words.pop();
    }
    json_size += words.len() * 16;
    Some((
        uid,
        words.into_iter().map(bytes::to_json).collect(),
        json_size,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_does_not_shift_the_fields() {
        let text = b"42 (a) R (b\n)) S 7 8 9 0 -1 4194304 1 2 3 4 50 60 5 6 20 0 3 0 12345 1000 77 18446744073709551615";
        let process = parse_stat(42, text).unwrap();
        assert_eq!(process.name, b"a) R (b\n)");
        assert_eq!((process.state, process.ppid, process.group), (b'S', 7, 8));
        assert_eq!((process.cpu_ticks, process.child_ticks), (110, 11));
        assert_eq!(
            (process.threads, process.start, process.rss_pages),
            (3, 12345, 77)
        );
    }

    #[test]
    fn truncated_stat_is_rejected() {
        for text in ["", "42", "42 (x", "42 (x)", "42 (x) S 1", ") ("] {
            assert!(parse_stat(42, text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn list_contains_this_process() {
        let me = std::process::id() as i32;
        assert!(all().unwrap().iter().any(|p| p.pid == me && p.alive()));
    }
}
