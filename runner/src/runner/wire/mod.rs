//! The protocol with a client: frames, connections, streams, requests and their answers.

pub mod bytes;
pub mod clients;
pub mod connection;
pub mod frame;
pub mod handler;
pub mod protocol;
pub mod request;
