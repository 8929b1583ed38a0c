//! Code shared by the programs of this crate: kernel calls, system-call filters, base64, tar archives, and
//! what the egress process and the gate have in common.

pub mod base64;
pub mod proxy;
pub mod seccomp;
pub mod sys;
pub mod tar;
