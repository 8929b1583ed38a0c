//! The plan, as the caller wrote it: parsed completely before anything is done.

use crate::failure::{Failure, Outcome};
use serde_json::Value;

/// The ids 0..count inside are the host ids base..base+count.
#[derive(Debug, Clone, Copy)]
pub struct IdMap {
    pub base: u32,
    pub count: u32,
    /// The id that the first process must have on the host; anything else is refused.
    pub expect: u32,
}

#[derive(Debug)]
pub enum Volume {
    /// An ext4 image, attached to a loop device that frees itself. `keep`: it outlives the sandbox, so
    /// ids on it are those inside, other processes may have it mounted too, and writes must be durable.
    /// `reserved`: its file has all of its blocks, and must not give them back. `first_id`: it is a copy
    /// of another sandbox's volume, on which the ids begin there.
    Image {
        path: String,
        keep: bool,
        reserved: bool,
        first_id: Option<u32>,
    },
    /// A directory that outlives the sandbox; ids as in a kept image.
    Directory { path: String },
    /// Memory, for users who may not mount images.
    Tmpfs { bytes: u64 },
}

/// A file or directory that must exist before something can be mounted over it.
#[derive(Debug)]
pub struct Place {
    /// Absolute, as seen inside.
    pub path: String,
    pub mode: u32,
    pub directory: bool,
}

/// The root file system of an image, assembled at `<stage>/root`.
#[derive(Debug)]
pub struct Root {
    /// Trees on this machine, lowest first.
    pub layers: Vec<String>,
    /// Changes go to the volume; without it the root is read-only.
    pub writable: bool,
    /// Where the changes go, if they may not go to the volume of the workspace.
    pub volume: Option<Volume>,
    pub places: Vec<Place>,
}

/// The user and the group that own a directory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// A file or directory of the host.
#[derive(Debug)]
pub struct HostMount {
    pub source: String,
    /// Present: the source was checked and has no symlink, and this path below it is shown (empty: all).
    pub below: Option<String>,
    /// Present: the sandbox may write, and the owner's files are its user's files. Otherwise read-only.
    pub owner: Option<Owner>,
    /// Name below the stage directory.
    pub name: String,
    /// Its content never changes: shown as a `Private`.
    pub private: bool,
}

/// A directory of the host, shown through its own overlay: no other process shares its inodes.
#[derive(Debug)]
pub struct Private {
    pub source: String,
    /// Name below the stage directory.
    pub name: String,
}

/// An OCI runtime to run in the prepared mount namespace instead of bubblewrap.
#[derive(Debug)]
pub struct Runtime {
    pub program: String,
    /// The whole argument list, the program's name first.
    pub argv: Vec<String>,
    /// Where the runtime writes the pid of the sandbox's first process, as its arguments say.
    pub runtime_pid_file: String,
    pub pid_file: String,
    /// The standard output of the runtime and of the sandbox's own kernel, if it has one.
    pub log: String,
}

/// Names below /proc that reveal details of the host: hidden before any code runs.
#[derive(Debug, Default)]
pub struct Masks {
    pub files: Vec<String>,
    pub directories: Vec<String>,
}

#[derive(Debug)]
pub struct Bind {
    pub source: String,
    /// Name below the stage directory.
    pub name: String,
    pub directory: bool,
}

/// Memory that the sandbox sees as a directory.
#[derive(Debug)]
pub struct Memory {
    /// Name below the stage directory.
    pub name: String,
    pub bytes: u64,
    pub mode: u32,
}

/// The process outside through which the sandbox reaches a network.
#[derive(Debug)]
pub struct Network {
    pub program: String,
    /// The user it runs as; absent for an ordinary user, who has no other.
    pub id: Option<u32>,
    /// A listening socket, on which it takes new rules.
    pub control_fd: i32,
    pub config: String,
    pub records: [String; 2],
    /// Where its pid and start time are written; absent in its own container, which is ended instead.
    pub pid_file: Option<String>,
    /// Whether the sandbox takes over a device: it has its own network stack.
    pub device: bool,
}

#[derive(Debug)]
pub struct Plan {
    /// 0: no descriptor, the runner binds a socket itself.
    pub listen_fd: i32,
    /// cgroup v1: files that we write our pid to.
    pub cgroup_tasks: Vec<String>,
    /// cgroup v2: the directory that the sandbox starts in.
    pub cgroup_v2: Option<String>,
    /// Present: root, a new user namespace with this map. Absent: an ordinary user, own id only.
    pub id_map: Option<IdMap>,
    pub stage: String,
    /// Absent: the arguments of the plan show the host's own /usr.
    pub root: Option<Root>,
    pub workspace: Volume,
    /// The owner of the files in the workspace, as the sandbox sees it.
    pub workspace_owner: u32,
    pub private: Vec<Private>,
    /// Whether the sandbox gets its own device nodes; only root can make them.
    pub own_devices: bool,
    /// Start the program in its own network namespace, which has only a loopback device.
    pub own_network: bool,
    /// Made after `private`, which a source may lie in.
    pub binds: Vec<Bind>,
    pub memory: Vec<Memory>,
    pub mounts: Vec<HostMount>,
    pub masks: Masks,
    /// Absent: bubblewrap or the runtime makes a namespace with nothing but loopback.
    pub network: Option<Network>,
    pub program: Program,
    pub limits: Vec<(i32, u64)>,
    pub timeout_ms: i32,
}

/// The program that runs on the stage.
#[derive(Debug)]
pub enum Program {
    /// Nothing: the plan only tests whether the platform can be prepared.
    Trial,
    Bubblewrap(Bubblewrap),
    Runtime(Runtime),
}

#[derive(Debug)]
pub struct Bubblewrap {
    pub program: String,
    pub args: Vec<String>,
    pub command: Vec<String>,
    pub seccomp: Vec<String>,
    pub terminals: u32,
    pub pid_file: String,
}

fn bad(what: &str) -> Failure {
    Failure::new(
        "plan",
        format!("'{}' is missing or invalid in the plan", what),
        0,
    )
}

pub fn string(v: &Value, key: &str) -> Outcome<String> {
    v[key].as_str().map(str::to_owned).ok_or_else(|| bad(key))
}

pub fn number(v: &Value, key: &str) -> Outcome<u64> {
    v[key].as_u64().ok_or_else(|| bad(key))
}

pub fn strings(v: &Value, key: &str) -> Outcome<Vec<String>> {
    v[key]
        .as_array()
        .ok_or_else(|| bad(key))?
        .iter()
        .map(|t| t.as_str().map(str::to_owned).ok_or_else(|| bad(key)))
        .collect()
}

impl Plan {
    pub fn parse(v: &Value) -> Outcome<Plan> {
        let id_map = id_map(&v["id_map"])?;
        let mut binds = Vec::new();
        for b in v["binds"].as_array().ok_or_else(|| bad("binds"))? {
            binds.push(Bind {
                source: string(b, "source")?,
                name: name(b)?,
                directory: b["directory"].as_bool().ok_or_else(|| bad("binds"))?,
            });
        }
        let mut memory = Vec::new();
        for m in list(v, "memory")? {
            memory.push(Memory {
                name: name(m)?,
                bytes: number(m, "bytes")?,
                mode: number(m, "mode")? as u32,
            });
        }
        let mut limits = Vec::new();
        for l in v["limits"].as_array().ok_or_else(|| bad("limits"))? {
            limits.push((number(l, "resource")? as i32, number(l, "value")?));
        }
        let mut mounts = Vec::new();
        for m in list(v, "mounts")? {
            mounts.push(HostMount {
                source: string(m, "source")?,
                below: m["below"].as_str().map(str::to_owned),
                owner: match &m["owner"] {
                    Value::Null => None,
                    o => Some(Owner {
                        uid: number(o, "uid")? as u32,
                        gid: number(o, "gid")? as u32,
                    }),
                },
                name: name(m)?,
                private: m["private"].as_bool().unwrap_or(false),
            });
        }
        let mut private = Vec::new();
        for p in list(v, "private")? {
            private.push(Private {
                source: string(p, "source")?,
                name: name(p)?,
            });
        }
        Ok(Plan {
            listen_fd: number(v, "listen_fd")? as i32,
            cgroup_tasks: strings(v, "cgroup_tasks")?,
            cgroup_v2: v["cgroup_v2"].as_str().map(str::to_owned),
            id_map,
            stage: string(v, "stage")?,
            root: root(&v["root"])?,
            workspace: volume(&v["workspace"])?,
            workspace_owner: number(v, "workspace_owner")? as u32,
            private,
            own_devices: v["own_devices"].as_bool().unwrap_or(false),
            own_network: v["own_network"].as_bool().unwrap_or(false),
            binds,
            memory,
            mounts,
            masks: masks(&v["masks"])?,
            network: network(&v["network"])?,
            program: program(v)?,
            limits,
            timeout_ms: number(v, "timeout_ms")? as i32,
        })
    }
}

pub fn id_map(v: &Value) -> Outcome<Option<IdMap>> {
    if v.is_null() {
        return Ok(None);
    }
    let map = IdMap {
        base: number(v, "base")? as u32,
        count: number(v, "count")? as u32,
        expect: number(v, "expect")? as u32,
    };
    if map.base == 0 || map.expect == 0 {
        return Err(Failure::new("plan", "host id 0 may never be mapped", 0));
    }
    Ok(Some(map))
}

/// Return a list that may be missing.
fn list<'a>(v: &'a Value, key: &str) -> Outcome<&'a [Value]> {
    match &v[key] {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        _ => Err(bad(key)),
    }
}

/// Parse one path component: a path joined to the stage must not leave it.
pub fn name(v: &Value) -> Outcome<String> {
    let name = string(v, "name")?;
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(bad("name"));
    }
    Ok(name)
}

pub fn volume(v: &Value) -> Outcome<Volume> {
    Ok(match v["kind"].as_str() {
        Some("image") => Volume::Image {
            path: string(v, "path")?,
            keep: v["keep"].as_bool().unwrap_or(false),
            reserved: v["reserved"].as_bool().unwrap_or(false),
            first_id: match &v["first_id"] {
                Value::Null => None,
                _ => Some(number(v, "first_id")? as u32),
            },
        },
        Some("directory") => Volume::Directory {
            path: string(v, "path")?,
        },
        Some("tmpfs") => Volume::Tmpfs {
            bytes: number(v, "bytes")?,
        },
        _ => return Err(bad("workspace")),
    })
}

fn root(v: &Value) -> Outcome<Option<Root>> {
    if v.is_null() {
        return Ok(None);
    }
    let layers = strings(v, "layers")?;
    if layers.is_empty() {
        return Err(bad("layers"));
    }
    let mut places = Vec::new();
    for p in list(v, "places")? {
        places.push(Place {
            path: string(p, "path")?,
            mode: number(p, "mode")? as u32,
            directory: p["directory"].as_bool().ok_or_else(|| bad("places"))?,
        });
    }
    Ok(Some(Root {
        layers,
        writable: v["writable"].as_bool().ok_or_else(|| bad("writable"))?,
        volume: match &v["volume"] {
            Value::Null => None,
            given => Some(volume(given)?),
        },
        places,
    }))
}

pub fn network(v: &Value) -> Outcome<Option<Network>> {
    if v.is_null() {
        return Ok(None);
    }
    let records = strings(v, "records")?;
    let id = match &v["id"] {
        Value::Null => None,
        // Whatever a hostile stream does to this process, it must not be root.
        _ => Some(number(v, "id")? as u32).filter(|id| *id != 0),
    };
    if v["id"].is_null() != id.is_none() {
        return Err(bad("id"));
    }
    Ok(Some(Network {
        program: string(v, "program")?,
        id,
        control_fd: number(v, "control_fd")? as i32,
        config: string(v, "config")?,
        records: <[String; 2]>::try_from(records).map_err(|_| bad("records"))?,
        pid_file: v["pid_file"].as_str().map(str::to_owned),
        device: v["device"].as_bool().ok_or_else(|| bad("device"))?,
    }))
}

fn masks(v: &Value) -> Outcome<Masks> {
    if v.is_null() {
        return Ok(Masks::default());
    }
    Ok(Masks {
        files: strings(v, "files")?,
        directories: strings(v, "directories")?,
    })
}

fn program(v: &Value) -> Outcome<Program> {
    if v["trial"].as_bool() == Some(true) {
        return Ok(Program::Trial);
    }
    let runtime = &v["runtime"];
    if !runtime.is_null() {
        return Ok(Program::Runtime(Runtime {
            program: string(runtime, "program")?,
            argv: strings(runtime, "argv")?,
            runtime_pid_file: string(runtime, "runtime_pid_file")?,
            pid_file: string(v, "pid_file")?,
            log: string(runtime, "log")?,
        }));
    }
    Ok(Program::Bubblewrap(Bubblewrap {
        program: string(v, "bwrap")?,
        args: strings(v, "args")?,
        command: strings(v, "command")?,
        seccomp: strings(v, "seccomp")?,
        terminals: number(v, "terminals")? as u32,
        pid_file: string(v, "pid_file")?,
    }))
}
