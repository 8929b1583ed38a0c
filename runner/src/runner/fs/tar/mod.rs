//! Tar archives of the file verbs: unpacking, writing, and the rules for names and links.

pub mod create;
pub mod extract;
pub mod links;
pub mod writer;
