//! Ids and capabilities of the runner, its supervisors, and the user's code.
//!
//! With `--user` the three differ. The runner keeps only the capabilities to become the user, and
//! accesses files as the user (fsuid). A supervisor may signal the user's processes (effective uid) but
//! cannot be signalled by them (real and saved uid). User code has no capability in any of the five
//! sets or, where the user is root inside (`--user-capabilities`), exactly the given ones: it may then
//! signal supervisors, and never the runner, which is the first process and which the kernel protects.

use crate::sys::{self, Capabilities, Errno};

const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
/// Capabilities that the runner itself needs.
const WANTED: u64 = 1 << CAP_KILL | 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_SETPCAP;
/// Above any capability that exists; PR_CAPBSET_DROP answers EINVAL for the first unknown one.
const CAP_END: libc::c_ulong = 64;
const KEEP: libc::uid_t = libc::uid_t::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// A user for file verbs; the first group is the main one.
#[derive(Debug, Clone)]
pub struct OtherUser {
    pub uid: u32,
    pub groups: Vec<u32>,
}

#[derive(Debug, Clone)]
pub struct Identity {
    pub own: Ids,
    pub user: Option<Ids>,
    /// Capabilities that user code keeps; it can never get more.
    pub kept: u64,
    /// The umask that we were started with; ours is 0, so that modes are exact.
    pub umask: libc::mode_t,
    /// gVisor has no separate ids for files: there the effective ids are changed. Who may signal us
    /// depends on the real and the saved id, which stay ours.
    effective_ids: bool,
}

/// Return sets in which `bits` are effective and permitted, and nothing is inheritable.
fn just(bits: u64) -> Capabilities {
    Capabilities {
        effective: bits,
        permitted: bits,
        inheritable: 0,
    }
}

fn clear_ambient() {
    // SAFETY: prctl with integers; a kernel without ambient sets has none to clear.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
}

/// Change from root to the runner's own id, keeping only the capabilities that it needs and those of
/// `kept`. For kernels without ambient capabilities, where a program that is not root would start
/// without any.
pub fn step_down(ids: Ids, kept: u64) -> Result<(), Errno> {
    // SAFETY: plain credential calls, each checked.
    unsafe {
        sys::check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        sys::check(libc::setgroups(0, std::ptr::null()))?;
        sys::check(libc::setresgid(ids.gid, ids.gid, ids.gid))?;
        sys::check(libc::setresuid(ids.uid, ids.uid, ids.uid))?;
    }
    keep_only(kept)
}

/// Change to another user and its groups, the first of which is the main one; capabilities go with it.
pub fn become_user(uid: u32, groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: plain credential calls, each checked.
    unsafe {
        sys::check(libc::setgroups(groups.len(), groups.as_ptr()))?;
        sys::check(libc::setresgid(groups[0], groups[0], groups[0]))?;
        sys::check(libc::setresuid(uid, uid, uid))
    }?;
    Ok(())
}

/// Reduce our capabilities. What the user keeps must be ours to give, and lets us access files as the
/// user would.
fn keep_only(kept: u64) -> Result<(), Errno> {
    let permitted = sys::capabilities()?.permitted & (WANTED | kept);
    clear_ambient();
    sys::set_capabilities(just(permitted))
}

impl Identity {
    pub fn current(user: Option<Ids>, kept: u64) -> Identity {
        // SAFETY: these calls only read or set process attributes.
        let (uid, gid, umask) = unsafe { (libc::getuid(), libc::getgid(), libc::umask(0)) };
        // SAFETY: an id that does not exist changes nothing, and the present one is answered.
        let effective_ids = unsafe { libc::setfsuid(KEEP) } < 0;
        Identity {
            own: Ids { uid, gid },
            user,
            kept,
            umask,
            effective_ids,
        }
    }

    pub fn user_uid(&self) -> u32 {
        self.user.unwrap_or(self.own).uid
    }

    /// Drop supplementary groups and every capability that is not needed. Called once, when the runner
    /// starts.
    pub fn drop_privileges(&self) -> Result<(), Errno> {
        let user = match self.user {
            Some(user) => user,
            None => return Ok(()),
        };
        drop_groups()?;
        keep_only(self.kept)?;
        self.bound(user)?;
        self.files_as(user.uid, user.gid);
        Ok(())
    }

    /// Remove from the bounding set what user code may never get. Every child inherits ours, so none
    /// has to do it again; we ourselves exec nothing and lose nothing by it.
    fn bound(&self, user: Ids) -> Result<(), Errno> {
        for cap in (0..CAP_END).filter(|cap| self.kept >> cap & 1 == 0) {
            // SAFETY: prctl with integers.
            let rc = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) };
            match sys::check(rc) {
                Ok(_) => {}
                Err(libc::EINVAL) if cap > 0 => break,
                // Already the user, with nothing to drop and no capability to do so: no_new_privs
                // holds.
                Err(libc::EPERM) if user.uid == self.own.uid => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn files_as(&self, uid: u32, gid: u32) {
        // SAFETY: these calls only change how this thread is seen by file systems.
        unsafe {
            if self.effective_ids {
                libc::setresgid(KEEP, gid, KEEP);
                libc::setresuid(KEEP, uid, KEEP);
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                // Leaving the effective id 0 makes every capability ineffective.
                let _unchanged = sys::raise_permitted();
            } else {
                libc::setfsgid(gid);
                libc::setfsuid(uid);
            }
        }
    }

    /// Run `work` with the runner's own file identity (the state directory does not belong to the
    /// user).
    pub fn as_runner<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.user {
            None => work(),
            Some(user) => {
                self.files_as(self.own.uid, self.own.gid);
                let value = work();
                self.files_as(user.uid, user.gid);
                value
            }
        }
    }

    /// Run `work` with the file identity of another user, who has none of our capabilities over files.
    /// Only a runner whose own user can do without groups has the ids to come back to.
    pub fn as_other<T>(&self, other: &OtherUser, work: impl FnOnce() -> T) -> Result<T, Errno> {
        let user = self.user.ok_or(libc::EPERM)?;
        let sets = sys::capabilities()?;
        // SAFETY: the list is as long as we say.
        sys::check(unsafe { libc::setgroups(other.groups.len(), other.groups.as_ptr()) })?;
        self.files_as(other.uid, other.groups[0]);
        let done = self.check_other(other.uid, sets).map(|()| work());
        self.files_as(user.uid, user.gid);
        // SAFETY: an empty list needs no pointer.
        let alone = unsafe { libc::setgroups(0, std::ptr::null()) } == 0;
        if !alone || self.file_uid() != user.uid || sys::set_capabilities(sets).is_err() {
            // Every later verb would have the ids of another user.
            std::process::abort();
        }
        done
    }

    /// Check that the ids changed: the calls report nothing, and an id may have no mapping. The
    /// kernel takes the capabilities over files with a uid for files, and not with an effective
    /// one.
    fn check_other(&self, uid: u32, sets: Capabilities) -> Result<(), Errno> {
        if self.file_uid() != uid {
            return Err(libc::EPERM);
        }
        sys::set_capabilities(Capabilities {
            effective: sets.effective & WANTED,
            ..sets
        })
    }

    fn file_uid(&self) -> u32 {
        if self.effective_ids {
            // SAFETY: geteuid only reads.
            return unsafe { libc::geteuid() };
        }
        // SAFETY: an id that does not exist changes nothing, and the present one is answered.
        unsafe { libc::setfsuid(KEEP) as u32 }
    }

    /// Run `work` as the owner of our process's files in /proc, which a dumpable process has.
    pub fn as_owner<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.effective_ids {
            return work();
        }
        self.as_runner(work)
    }

    /// In a supervisor, after its child was started: become able to signal the user, and not the other
    /// way round.
    pub fn become_supervisor(&self) {
        if let Some(user) = self.user.filter(|user| user.uid != self.own.uid) {
            // SAFETY: plain credential calls; a failure leaves us as we were, with CAP_KILL if we had it.
            unsafe {
                libc::setresgid(KEEP, user.gid, KEEP);
                libc::setresuid(KEEP, user.uid, KEEP);
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            }
        }
    }

    /// In the child of a reused supervisor: get the ids of a child of the runner itself.
    pub fn leave_supervisor(&self) -> Result<(), Errno> {
        // Where effective ids replace those for files, the runner's are the user's as well.
        let differs = |user: &Ids| user.uid != self.own.uid && !self.effective_ids;
        if self.user.filter(differs).is_some() {
            // SAFETY: plain credential calls, each checked.
            unsafe {
                // Where the user is root, none of our ids is root afterwards, and that would drop all
                // capabilities.
                sys::check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
                sys::check(libc::setresuid(KEEP, self.own.uid, KEEP))?;
                sys::check(libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0))?;
                sys::check(libc::setresgid(KEEP, self.own.gid, KEEP))?;
                sys::check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
            }
            sys::raise_permitted()?;
        }
        Ok(())
    }

    /// In a child that is about to exec the user's program: become the user. Every step must succeed.
    pub fn become_user(&self) -> Result<(), Errno> {
        if let Some(user) = self.user {
            // SAFETY: plain credential calls, each checked.
            unsafe {
                sys::check(libc::setresgid(user.gid, user.gid, user.gid))?;
                sys::check(libc::setresuid(user.uid, user.uid, user.uid))?;
            }
            sys::set_capabilities(just(self.kept))?;
        }
        // SAFETY: prctl with integers.
        sys::check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: umask cannot fail.
        unsafe { libc::umask(self.umask) };
        Ok(())
    }
}

/// A user namespace whose gid map was written without privilege forbids setgroups for good. Then the
/// groups are unmapped and have no effect inside; that is the one case we accept.
fn drop_groups() -> Result<(), Errno> {
    // SAFETY: an empty list needs no pointer.
    match sys::check(unsafe { libc::setgroups(0, std::ptr::null()) }) {
        Ok(_) => Ok(()),
        Err(errno) => {
            // SAFETY: asks only for the number of groups.
            let none = unsafe { libc::getgroups(0, std::ptr::null_mut()) } == 0;
            let denied = sys::read_file(b"/proc/self/setgroups", 16)
                .is_ok_and(|text| text.starts_with(b"deny"));
            if none || denied {
                Ok(())
            } else {
                Err(errno)
            }
        }
    }
}
