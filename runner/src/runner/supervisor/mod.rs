//! Supervisors: the process between the runner and one command or one shell.
//!
//! `process` runs in the supervisor, `pool` in the runner; they talk in `messages` and `handover`.

mod handover;
mod messages;
mod pool;
mod process;
pub mod program;
mod registry;
mod sweep;

pub use messages::{Order, Report, Usage};
pub use pool::{Owner, Received, Supervisors};
