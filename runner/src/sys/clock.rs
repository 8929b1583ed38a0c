//! Clocks.

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid out pointer.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds of processor time that a process has used with all of its threads; 0 if it is gone.
pub fn cpu_ms_of(pid: i32) -> u64 {
    // The kernel derives the clocks of processes from their numbers, as clock_getcpuclockid does.
    const SCHEDULED: libc::clockid_t = 2;
    clock_ns(!pid << 3 | SCHEDULED) / 1_000_000
}

/// Nanoseconds on the clock that counts suspended time and never jumps.
pub fn boot_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

pub fn unix_ms() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1_000_000
}
