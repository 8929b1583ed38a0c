//! The plan, as the caller wrote it: parsed completely before anything is done.

use crate::{Outcome, Trouble};
use serde_json::Value;

/// Inside ids 0..count are host ids base..base+count.
#[derive(Debug, Clone, Copy)]
pub struct IdMap {
    pub base: u32,
    pub count: u32,
    /// The id the first process must have on the host; anything else is refused.
    pub expect: u32,
}

#[derive(Debug)]
pub enum Workspace {
    /// An ext4 image, attached to a loop device that frees itself.
    Image { path: String },
    /// Memory, for those who may not mount images.
    Tmpfs { bytes: u64 },
}

#[derive(Debug)]
pub struct Bind {
    pub source: String,
    /// Name below the stage directory.
    pub name: String,
    pub directory: bool,
}

#[derive(Debug)]
pub struct Plan {
    pub listen_fd: i32,
    /// v1: files we write ourselves to.
    pub cgroup_tasks: Vec<String>,
    /// v2: the directory the sandbox is born in.
    pub cgroup_v2: Option<String>,
    /// Given: root, a fresh user namespace with this map. Absent: an ordinary user, own id only.
    pub id_map: Option<IdMap>,
    pub stage: String,
    pub workspace: Workspace,
    /// Host id that owns what is in the workspace.
    pub workspace_owner: u32,
    pub binds: Vec<Bind>,
    pub bwrap: String,
    pub args: Vec<String>,
    pub command: Vec<String>,
    pub seccomp: Vec<String>,
    pub limits: Vec<(i32, u64)>,
    pub terminals: u32,
    pub pid_file: String,
    pub timeout_ms: i32,
}

fn bad(what: &str) -> Trouble {
    Trouble::new("plan", format!("the plan has no usable '{}'", what), 0)
}

fn text(v: &Value, key: &str) -> Outcome<String> {
    v[key].as_str().map(str::to_owned).ok_or_else(|| bad(key))
}

fn number(v: &Value, key: &str) -> Outcome<u64> {
    v[key].as_u64().ok_or_else(|| bad(key))
}

fn texts(v: &Value, key: &str) -> Outcome<Vec<String>> {
    v[key]
        .as_array()
        .ok_or_else(|| bad(key))?
        .iter()
        .map(|t| t.as_str().map(str::to_owned).ok_or_else(|| bad(key)))
        .collect()
}

impl Plan {
    pub fn parse(source: &str) -> Outcome<Plan> {
        let v: Value = serde_json::from_str(source)
            .map_err(|e| Trouble::new("plan", format!("not JSON: {}", e), 0))?;
        let id_map = match &v["id_map"] {
            Value::Null => None,
            m => Some(IdMap {
                base: number(m, "base")? as u32,
                count: number(m, "count")? as u32,
                expect: number(m, "expect")? as u32,
            }),
        };
        if let Some(m) = id_map {
            if m.base == 0 || m.expect == 0 {
                return Err(Trouble::new("plan", "host id 0 may never be mapped", 0));
            }
        }
        let w = &v["workspace"];
        let workspace = match w["kind"].as_str() {
            Some("image") => Workspace::Image {
                path: text(w, "path")?,
            },
            Some("tmpfs") => Workspace::Tmpfs {
                bytes: number(w, "bytes")?,
            },
            _ => return Err(bad("workspace")),
        };
        let mut binds = Vec::new();
        for b in v["binds"].as_array().ok_or_else(|| bad("binds"))? {
            binds.push(Bind {
                source: text(b, "source")?,
                name: text(b, "name")?,
                directory: b["directory"].as_bool().ok_or_else(|| bad("binds"))?,
            });
        }
        let mut limits = Vec::new();
        for l in v["limits"].as_array().ok_or_else(|| bad("limits"))? {
            limits.push((number(l, "resource")? as i32, number(l, "value")?));
        }
        Ok(Plan {
            listen_fd: number(&v, "listen_fd")? as i32,
            cgroup_tasks: texts(&v, "cgroup_tasks")?,
            cgroup_v2: v["cgroup_v2"].as_str().map(str::to_owned),
            id_map,
            stage: text(&v, "stage")?,
            workspace,
            workspace_owner: number(&v, "workspace_owner")? as u32,
            binds,
            bwrap: text(&v, "bwrap")?,
            args: texts(&v, "args")?,
            command: texts(&v, "command")?,
            seccomp: texts(&v, "seccomp")?,
            limits,
            terminals: number(&v, "terminals")? as u32,
            pid_file: text(&v, "pid_file")?,
            timeout_ms: number(&v, "timeout_ms")? as i32,
        })
    }
}
