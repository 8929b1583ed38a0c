//! An *Entry* of the protocol: one file, directory, link or other node.

use super::resolve::{failed, Object};
use crate::fs::names;
use crate::sys::{self, as_fd, Stat};
use crate::wire::bytes;
use crate::wire::handler::Failure;
use serde_json::{Map, Value};
use std::os::unix::io::BorrowedFd;

pub fn type_name(stat: &Stat) -> &'static str {
    match sys::kind(stat) {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "char",
        libc::S_IFBLK => "block",
        _ => "file",
    }
}

/// `target` is the target of a symlink.
pub fn describe(path: &[u8], name: &[u8], stat: &Stat, target: Option<&[u8]>) -> Value {
    let mut entry = Map::new();
    entry.insert("path".to_owned(), bytes::to_json(path));
    entry.insert("name".to_owned(), bytes::to_json(name));
    entry.insert("type".to_owned(), Value::from(type_name(stat)));
    entry.insert("size".to_owned(), Value::from(stat.st_size));
    entry.insert("mode".to_owned(), Value::from(stat.st_mode & 0o7777));
    entry.insert("mtime_unix".to_owned(), Value::from(stat.st_mtime));
    entry.insert("uid".to_owned(), Value::from(stat.st_uid));
    entry.insert("gid".to_owned(), Value::from(stat.st_gid));
    if let Some(target) = target {
        entry.insert("target".to_owned(), bytes::to_json(target));
    }
    Value::Object(entry)
}

pub fn of_object(object: &Object) -> Result<Value, Failure> {
    let target = if sys::is_symlink(&object.stat) {
        let text = sys::read_link_at(as_fd(&object.fd), b"")
            .map_err(|error| failed(error, "read link", &object.path))?;
        Some(text)
    } else {
        None
    };
    let name = names::base_name(&object.path);
    Ok(describe(
        &object.path,
        name,
        &object.stat,
        target.as_deref(),
    ))
}

/// Return the entry `name` of the directory `dir`, whose own path is `dir_path`.
pub fn of_name(dir: BorrowedFd<'_>, dir_path: &[u8], name: &[u8]) -> Result<Value, Failure> {
    let path = names::join(dir_path, name);
    let stat = sys::stat_at(dir, name).map_err(|error| failed(error, "stat", &path))?;
    let target = link_text(dir, name, &stat).map_err(|error| failed(error, "read link", &path))?;
    Ok(describe(&path, name, &stat, target.as_deref()))
}

/// Return the target of `name` if `stat` says that it is a symlink.
pub fn link_text(dir: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> sys::Result<Option<Vec<u8>>> {
    if sys::is_symlink(stat) {
        sys::read_link_at(dir, name).map(Some)
    } else {
        Ok(None)
    }
}
