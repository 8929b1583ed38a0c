//! Supervisors: the process between the runner and one command or one shell.
//!
//! `process` runs in the supervisor, `pool` in the runner; they talk in `messages` and `handover`.
//!
//! A supervisor that has no process left below it is reused for the next command, because forking one is
//! the most expensive part of starting a command. Median time from `exec.start` of `/bin/true` to its result,
//! over `--stdio`, with and without reuse (the latter by making `Supervisors::hand_over` return `None` and
//! `keep_or_release` always release), alternating between two runners on a busy machine with two cores:
//! 8.2 ms and 17.5 ms under gVisor (`runsc do`), 1.1 ms and 1.6 ms without it.

mod handover;
mod messages;
mod pool;
mod process;
pub mod program;
mod registry;
mod sweep;

pub use messages::{Order, Report, Usage};
pub use pool::{Owner, Received, Supervisors};
