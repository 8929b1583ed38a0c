//! User namespaces: a new one mapped to an id range (as root), or one with the caller's own id
//! (ordinary user).

use crate::failure::{check, failed, open, pipe, write_file, Failure, Outcome};
use crate::plan::{IdMap, Owner};
use crate::{network, sys};
use std::os::unix::io::RawFd;

const STEP: &str = "userns";

/// Return a descriptor of a new user namespace with this map, in which no further one can be made.
///
/// A child makes the namespace and waits; we write its maps, because only a process outside may map a
/// range, and keep the namespace alive through its descriptor.
pub fn mapped(map: IdMap) -> Outcome<RawFd> {
    let line = format!("0 {} {}", map.base, map.count);
    with_maps(map, &line, &line)
}

/// Do the same, and begin to make a network namespace that belongs to it and has only a loopback
/// device. The kernel takes about as long for that as for the mounts, which are prepared meanwhile.
pub fn mapped_with_network(map: IdMap) -> Outcome<(RawFd, OwnNetwork)> {
    let line = format!("0 {} {}", map.base, map.count);
    let helper = Helper::fork(map, true)?;
    match helper.write_maps(&line, &line) {
        Ok(userns) => Ok((userns, OwnNetwork(helper))),
        Err(failure) => Err(helper.end(failure, MADE)),
    }
}

/// A network namespace that is still being made.
pub struct OwnNetwork(Helper);

impl OwnNetwork {
    /// Enter the namespace. Every process that is started from now on is in it.
    pub fn enter(self) -> Outcome<()> {
        let helper = self.0;
        let entered = wait_byte(helper.from_child)
            .and_then(|()| {
                let path = format!("/proc/{}/ns/net", helper.pid);
                open(STEP, &path, libc::O_RDONLY, 0)
            })
            .and_then(|namespace| {
                let done = unsafe { libc::setns(namespace, libc::CLONE_NEWNET) };
                let done = check(STEP, "enter the network namespace", done);
                sys::close(namespace);
                done
            });
        match entered {
            Ok(_) => {
                helper.reap();
                Ok(())
            }
            Err(failure) => Err(helper.end(failure, "make a network namespace")),
        }
    }
}

/// Return a descriptor of a user namespace that only a mount uses: files of `owner` on disk are files of
/// the sandbox's `user`, and all other ids are unmapped.
pub fn of_one_owner(map: IdMap, owner: Owner, user: u32) -> Outcome<RawFd> {
    let seen = map.base + user;
    let (uids, gids) = (
        format!("{} {} 1", owner.uid, seen),
        format!("{} {} 1", owner.gid, seen),
    );
    with_maps(map, &uids, &gids)
}

fn with_maps(map: IdMap, uids: &str, gids: &str) -> Outcome<RawFd> {
    let helper = Helper::fork(map, false)?;
    match helper.write_maps(uids, gids) {
        Ok(userns) => {
            helper.reap();
            Ok(userns)
        }
        Err(failure) => Err(helper.end(failure, MADE)),
    }
}

const MADE: &str = "make a user namespace";

/// The child that makes namespaces. It ends when we close our end, or end.
struct Helper {
    pid: i32,
    from_child: RawFd,
    to_child: RawFd,
}

impl Helper {
    fn fork(map: IdMap, network: bool) -> Outcome<Helper> {
        let (from_child, to_parent) = pipe()?;
        let (from_parent, to_child) = pipe()?;
        let pid = check(STEP, "fork", unsafe { libc::fork() })?;
        if pid == 0 {
            // Our copies of the parent's ends would keep us from seeing that it closes them.
            sys::close(from_child);
            sys::close(to_child);
            let code = match child(map, network, to_parent, from_parent) {
                Ok(()) => 0,
                Err(t) => t.errno.clamp(1, 254),
            };
            unsafe { libc::_exit(code) };
        }
        sys::close(to_parent);
        sys::close(from_parent);
        Ok(Helper {
            pid,
            from_child,
            to_child,
        })
    }

    fn write_maps(&self, uids: &str, gids: &str) -> Outcome<RawFd> {
        let pid = self.pid;
        wait_byte(self.from_child)?;
        write_file(STEP, &format!("/proc/{}/uid_map", pid), uids.as_bytes())?;
        write_file(STEP, &format!("/proc/{}/gid_map", pid), gids.as_bytes())?;
        send_byte(self.to_child)?;
        wait_byte(self.from_child)?;
        open(STEP, &format!("/proc/{}/ns/user", pid), libc::O_RDONLY, 0)
    }

    /// Let the child end, and return its status.
    fn reap(self) -> i32 {
        sys::close(self.to_child);
        sys::close(self.from_child);
        let mut status = 0;
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        status
    }

    /// Return the reason why the child failed at `what`, or `failure` if the child did not fail.
    fn end(self, failure: Failure, what: &str) -> Failure {
        let status = self.reap();
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
            Failure::new(STEP, what, libc::WEXITSTATUS(status))
        } else {
            failure
        }
    }
}

fn child(map: IdMap, network: bool, to_parent: RawFd, from_parent: RawFd) -> Outcome<()> {
    // Resources that the kernel counts per user (inotify instances, pending signals, …) are also
    // charged to the creator of the namespace. If host root created it, one sandbox could use up what
    // root itself may have; so the creator is an id of the sandbox's own range. Capabilities are kept
    // over the change, because some hosts let only privileged processes make user namespaces.
    check(STEP, "keep capabilities", unsafe {
        libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0)
    })?;
    check(STEP, "take the range's group", unsafe {
        libc::syscall(libc::SYS_setresgid, map.base, map.base, map.base) as libc::c_int
    })?;
    check(STEP, "take the range's id", unsafe {
        libc::syscall(libc::SYS_setresuid, map.base, map.base, map.base) as libc::c_int
    })?;
    sys::raise_permitted().map_err(failed("capabilities", "capset"))?;
    check(STEP, "unshare", unsafe {
        libc::unshare(libc::CLONE_NEWUSER)
    })?;
    send_byte(to_parent)?;
    wait_byte(from_parent)?;
    // This sysctl belongs to the namespace: inside, no process can make another one, with or without
    // seccomp.
    write_file(STEP, "/proc/sys/user/max_user_namespaces", b"0")?;
    send_byte(to_parent)?;
    if network {
        network::new_namespace()?;
        send_byte(to_parent)?;
    }
    // Live until the parent has opened the namespaces and closed its end.
    let _ = wait_byte(from_parent);
    Ok(())
}

/// Enter a user namespace as an ordinary user: our own id, mapped to itself, which is enough to mount
/// in a private mount namespace.
pub fn enter_own() -> Outcome<()> {
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    check(STEP, "make a user namespace as an ordinary user", unsafe {
        libc::unshare(libc::CLONE_NEWUSER)
    })?;
    write_file(STEP, "/proc/self/setgroups", b"deny")?;
    write_file(
        STEP,
        "/proc/self/uid_map",
        format!("{} {} 1", uid, uid).as_bytes(),
    )?;
    write_file(
        STEP,
        "/proc/self/gid_map",
        format!("{} {} 1", gid, gid).as_bytes(),
    )
}

fn send_byte(fd: RawFd) -> Outcome<()> {
    let n = unsafe { libc::write(fd, b"x".as_ptr().cast(), 1) };
    check(STEP, "signal the other side", n as libc::c_int).map(|_| ())
}

fn wait_byte(fd: RawFd) -> Outcome<()> {
    let mut byte = 0u8;
    match unsafe { libc::read(fd, (&mut byte as *mut u8).cast(), 1) } {
        1 => Ok(()),
        0 => Err(Failure::new(
            STEP,
            "the other side ended early",
            libc::EPIPE,
        )),
        _ => Err(Failure::last(STEP, "wait for the other side")),
    }
}
