//! The behaviour of the runner from outside: one test program, because each one costs a link and a
//! lint.

mod client;
mod exec;
mod fs_verbs;
mod fuzz;
mod idle_supervisor;
mod output;
mod posture;
mod protocol;
mod relay;
mod script;
mod shell;
mod shell_lifecycle;
mod sweep;
