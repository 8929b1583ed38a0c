//! Everything the runner does, asked from outside: one program, because each costs a link and a lint.

mod client;
mod exec;
mod fs_verbs;
mod fuzz;
mod output;
mod posture;
mod protocol;
mod relay;
mod shell;
mod shell_life;
mod spare;
mod sweep;
