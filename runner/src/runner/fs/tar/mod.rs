//! Tar archives of the file verbs: reading, writing, and the rules for names and links.

pub mod create;
pub mod extract;
pub mod links;
mod pax;
pub mod reader;
pub mod writer;
