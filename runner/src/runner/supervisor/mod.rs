//! The process between the runner and one command or one shell, and what the runner knows of it.

pub mod handover;
mod idle;
mod messages;
mod process;
pub mod program;
pub mod registry;
mod sweep;

pub use messages::{give, hear, Order, Report, Usage};
pub use process::{start, sweep_orphans};
