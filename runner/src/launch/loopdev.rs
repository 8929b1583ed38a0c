//! Attaching an image file to a loop device that frees itself when the last user is gone.

use crate::sys;
use crate::{Outcome, Trouble};
use std::os::unix::io::RawFd;

const STEP: &str = "loop";
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4096;
/// Others take free devices at the same time; each lost race costs one try.
const TRIES: usize = 64;

/// struct loop_config of <linux/loop.h>; the same layout on every 64-bit architecture.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

pub struct Attached {
    pub path: String,
    /// Held until the device is mounted: the last close of an unmounted device frees it.
    pub fd: RawFd,
}

pub fn attach(image: &str) -> Outcome<Attached> {
    let file = open_rw(image)?;
    let control = open_rw("/dev/loop-control")?;
    let outcome = claim(file, control);
    sys::close(control);
    sys::close(file);
    outcome
}

fn claim(file: RawFd, control: RawFd) -> Outcome<Attached> {
    for _ in 0..TRIES {
        let number = sys::check(STEP, "find a free loop device", unsafe {
            libc::ioctl(control, LOOP_CTL_GET_FREE as _)
        })?;
        let path = format!("/dev/loop{}", number);
        let fd = open_rw(&path)?;
        let config = LoopConfig {
            fd: file as u32,
            block_size: BLOCK_SIZE,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            sizelimit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        if unsafe { libc::ioctl(fd, LOOP_CONFIGURE as _, &config) } == 0 {
            return Ok(Attached { path, fd });
        }
        let errno = sys::errno();
        sys::close(fd);
        if errno != libc::EBUSY {
            return Err(Trouble::new(STEP, format!("configure {}", path), errno));
        }
    }
    Err(Trouble::new(
        STEP,
        "every free loop device was taken by others",
        libc::EBUSY,
    ))
}

fn open_rw(path: &str) -> Outcome<RawFd> {
    let cpath = sys::c(STEP, path)?;
    sys::check(STEP, &format!("open {}", path), unsafe {
        libc::open(cpath.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)
    })
}
