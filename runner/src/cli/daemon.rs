//! The daemon that a command uses, where finding it needs no settings.
//!
//! `client/server/daemon_or_embedded.py` has the whole rule; this is a part of it. `Daemon::find` returns
//! None if the whole rule has to decide: if there is a settings file, a variable that is a setting, a URL
//! that needs decoding, or a contradiction.

use crate::line::Options;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

const FILES: [&str; 2] = ["sandkasten.yaml", "/etc/sandkasten/sandkasten.yaml"];
const PREFIXES: [&str; 3] = ["SANDKASTEN_", "STATION_SANDBOX_", "SANDBOX_"];
/// Variables that cannot make the settings invalid and cause no warning.
const HARMLESS: [&str; 3] = ["SANDKASTEN_URL", "SANDKASTEN_TENANT", "SANDKASTEN_DATA_DIR"];

#[derive(Debug, PartialEq, Eq)]
pub struct Daemon {
    /// The path of its socket.
    pub path: String,
    pub api_key: Option<String>,
    pub tenant: Option<String>,
}

impl Daemon {
    /// Return the daemon that these options and the environment name, if that is certain.
    pub fn find(options: &Options) -> Option<Daemon> {
        let named = variable("SANDKASTEN_URL")?;
        let tenant = variable("SANDKASTEN_TENANT")?;
        let api_key = options.get("api_key").map(Into::into);
        let (url, directory) = (options.get("url"), options.get("data_dir"));
        if url == Some("embedded") || (url.is_none() && named.as_deref() == Some("embedded")) {
            return None;
        }
        let url = if directory.is_none() {
            url.or(named.as_deref())
        } else {
            url
        };
        let path = match (url, directory) {
            (Some(_), Some(_)) => return None,
            (Some(url), None) => url.strip_prefix("unix://")?.to_owned(),
            (None, _) if api_key.is_some() || !is_by_default() => return None,
            (None, directory) => socket_in(directory)?,
        };
        let plain = path.starts_with('/') && is_plain(&path);
        let headers = api_key
            .iter()
            .chain(&tenant)
            .all(|value| is_printable(value));
        (plain && headers).then_some(Daemon {
            path,
            api_key,
            tenant,
        })
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.path)
    }
}

/// Return a variable, None inside if it is empty or not set; None if it is not valid UTF-8.
fn variable(name: &str) -> Option<Option<String>> {
    match std::env::var_os(name) {
        None => Some(None),
        Some(value) => value
            .into_string()
            .ok()
            .map(|value| Some(value).filter(|v| !v.is_empty())),
    }
}

/// Return whether a path is written the same way in a URL.
fn is_plain(path: &str) -> bool {
    path.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte))
}

pub fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Return whether no file and no variable sets or breaks anything but the data directory.
fn is_by_default() -> bool {
    std::env::var_os("SANDKASTEN_CONFIG").is_none_or(|value| value.is_empty())
        && FILES
            .iter()
            .all(|path| std::fs::symlink_metadata(path).is_err())
        && std::env::vars_os().all(|(name, value)| value.is_empty() || is_harmless(&name))
}

fn is_harmless(name: &OsStr) -> bool {
    let starts = |prefix: &str| name.as_bytes().starts_with(prefix.as_bytes());
    !PREFIXES.iter().any(|prefix| starts(prefix))
        || HARMLESS.iter().any(|harmless| name == *harmless)
}

/// Return the path of the socket in a data directory; None if the directory is written unusually.
fn socket_in(directory: Option<&str>) -> Option<String> {
    let directory = match directory
        .map(Into::into)
        .or(variable("SANDKASTEN_DATA_DIR")?)
    {
        Some(directory) if !directory.is_empty() => directory.into(),
        _ => default_directory()?,
    };
    let parts = directory
        .components()
        .all(|part| part != Component::ParentDir);
    let whole = std::env::current_dir().ok()?.join(directory);
    // Its components leave out what the other rule removes: `.`, and a second slash.
    let path: PathBuf = whole.components().collect();
    (parts && path.is_absolute()).then_some(())?;
    path.join("daemon.sock").into_os_string().into_string().ok()
}

fn default_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/sandkasten".into());
    }
    let state = variable("XDG_STATE_HOME")?.filter(|state| state.starts_with('/'));
    match state {
        Some(state) => Some(Path::new(&state).join("sandkasten")),
        None => Some(Path::new(&variable("HOME")??).join(".local/state/sandkasten")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_are_no_settings_are_harmless() {
        for (name, harmless) in [
            ("PATH", true),
            ("SANDKASTEN_URL", true),
            ("TEST_SANDKASTEN_X", true),
            ("SANDKASTEN_URLS", false),
            ("SANDKASTEN_BACKEND", false),
            ("SANDBOX_SESSION_MAX_LIFETIME", false),
        ] {
            assert_eq!(is_harmless(OsStr::new(name)), harmless, "{}", name);
        }
    }

    #[test]
    fn a_path_that_a_url_encodes_is_not_plain() {
        assert!(is_plain("/run/a-b_c.d/9.sock"));
        assert!(!is_plain("/run/a b") && !is_plain("/é") && !is_plain("/a%20"));
    }

    #[test]
    fn a_directory_is_made_absolute() {
        assert_eq!(socket_in(Some("/a//b/./c/")).unwrap(), "/a/b/c/daemon.sock");
        assert_eq!(socket_in(Some("/a/../b")), None);
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            socket_in(Some("x")).unwrap(),
            here.join("x/daemon.sock").to_str().unwrap()
        );
    }
}
