//! `python` for images that have only `python3`: a link in the state directory, which is then the last
//! entry of PATH. The image is not changed, and its own `python` is never shadowed.

use crate::identity::Identity;
use crate::supervisor::program::{env_get, env_set, Env, DEFAULT_PATH};
use crate::sys;

const DIRECTORY: &[u8] = b"/bin";
const NAME: &[u8] = b"python";

/// Offer the name, if it is missing. A failure only means that it stays missing.
pub fn offer(env: &mut Env, state_dir: &[u8], identity: &Identity) {
    let path = env_get(env, b"PATH").unwrap_or(DEFAULT_PATH).to_vec();
    let target = match (find(&path, b"python"), find(&path, b"python3")) {
        (None, Some(target)) => target,
        _ => return,
    };
    let directory = [state_dir, DIRECTORY].concat();
    let made = identity.as_runner(|| {
        match sys::make_dir(&directory, 0o755) {
            Ok(()) | Err(libc::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let opened = sys::open(&directory, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        match sys::symlink_at(&target, opened, NAME) {
            Err(libc::EEXIST) => Ok(()),
            other => other,
        }
    });
    if made.is_ok() {
        env_set(env, b"PATH", [&path[..], b":", &directory].concat());
    }
}

/// Remove what `offer` made.
pub fn remove(state_dir: &[u8], identity: &Identity) {
    let directory = [state_dir, DIRECTORY].concat();
    identity.as_runner(|| {
        sys::unlink(&[&directory[..], b"/", NAME].concat());
        sys::remove_dir(&directory);
    });
}

/// Return the first program of that name on `path`.
fn find(path: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    path.split(|&c| c == b':')
        .filter(|directory| directory.starts_with(b"/"))
        .map(|directory| [directory, b"/", name].concat())
        .find(|candidate| sys::is_executable(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    fn path_after(programs: &[&str]) -> (String, Option<std::path::PathBuf>) {
        let name = format!(
            "sandkasten-python-{}-{}",
            std::process::id(),
            sys::boot_ns()
        );
        let root = std::env::temp_dir().join(name);
        let (programs_dir, state) = (root.join("programs"), root.join("state"));
        fs::create_dir_all(&programs_dir).unwrap();
        fs::create_dir_all(&state).unwrap();
        for program in programs {
            let file = programs_dir.join(program);
            fs::write(&file, b"").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let before = programs_dir.as_os_str().as_bytes().to_vec();
        let mut env: Env = vec![(b"PATH".to_vec(), before)];
        let identity = Identity::current(None, 0);
        let state_bytes = state.as_os_str().as_bytes();
        offer(&mut env, state_bytes, &identity);
        let path = String::from_utf8(env[0].1.clone()).unwrap();
        let link = fs::read_link(state.join("bin/python")).ok();
        let shown = path.replace(root.to_str().unwrap(), "");
        let target = link.map(|at| at.strip_prefix(&root).unwrap().to_owned());
        remove(state_bytes, &identity);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
        fs::remove_dir_all(root).unwrap();
        (shown, target)
    }

    #[test]
    fn python_is_a_link_to_python3_at_the_end_of_the_path() {
        let (path, target) = path_after(&["python3"]);
        assert_eq!(path, "/programs:/state/bin");
        assert_eq!(target, Some("programs/python3".into()));
    }

    #[test]
    fn nothing_is_offered_beside_a_python_or_without_a_python3() {
        for programs in [&["python", "python3"][..], &["python"], &[]] {
            assert_eq!(path_after(programs), ("/programs".to_owned(), None));
        }
    }
}
