//! Code shared by the four programs of this crate: kernel calls and the tar header format.

// Newer versions of libc define c_int through a path that is younger than our oldest compiler.
// The oldest clippy we lint with does not know that lint.
#![allow(unknown_lints)]
#![allow(clippy::incompatible_msrv)]

pub mod sys;
pub mod tar;
