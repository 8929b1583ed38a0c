//! What all parts of the server work with: configuration, poll set, timers, lease, clients, supervisors.
//!
//! Commands and shells get it as `cx`. It knows neither of them: a part above may use a part below, never
//! the other way round.

use crate::identity::Identity;
use crate::lease::Lease;
use crate::poll::Poll;
use crate::supervisor::program::{Env, Program, Wiring};
use crate::supervisor::{Owner, Supervisors};
use crate::sys::Errno;
use crate::timers::Timers;
use crate::wire::clients::Clients;
use crate::wire::handler::Failure;

pub struct Config {
    pub identity: Identity,
    pub workspace: Vec<u8>,
    pub home: Vec<u8>,
    /// The environment of commands, before their own variables.
    pub env: Env,
    /// The environment that the runner was started with, until a claim has added to it: then `None`.
    pub unclaimed: Option<Env>,
    pub state_dir: Vec<u8>,
    /// Whether the shell was named at the start, rather than found on PATH.
    pub fixed_shell: bool,
    /// The shell program, if the image has one.
    pub shell: Option<Vec<u8>>,
    /// The port of the gate beside us, whose connections are our own clients'.
    pub gate_port: Option<u16>,
}

pub struct Context {
    pub config: Config,
    pub poll: Poll,
    pub timers: Timers,
    pub lease: Lease,
    pub clients: Clients,
    pub supervisors: Supervisors,
    serial: u64,
    block: Vec<u8>,
}

impl Context {
    pub fn new(config: Config) -> Result<Context, Errno> {
        Ok(Context {
            config,
            poll: Poll::new()?,
            timers: Timers::new(),
            lease: Lease::default(),
            clients: Clients::default(),
            supervisors: Supervisors::new()?,
            serial: 0,
            block: Vec::new(),
        })
    }

    /// Return a number that was never returned before.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Borrow the one buffer that all reads share, at least `size` bytes long.
    pub fn take_block(&mut self, size: usize) -> Vec<u8> {
        let mut block = std::mem::take(&mut self.block);
        if block.len() < size {
            block.resize(size, 0);
        }
        block
    }

    pub fn return_block(&mut self, block: Vec<u8>) {
        self.block = block;
    }

    /// Restart the idle time of the lease.
    pub fn touch_lease(&mut self) {
        self.lease.touch(self.timers.work_now());
    }

    /// Fork a supervisor that starts `program`. Return its pid.
    pub fn start_supervisor(
        &mut self,
        program: &Program,
        wiring: &Wiring,
        owner: Owner,
    ) -> Result<i32, Failure> {
        let identity = &self.config.identity;
        self.supervisors
            .start(program, wiring, owner, identity, &mut self.poll)
    }

    /// Start `program` below the idle supervisor, if there is one that takes it. Return its pid.
    pub fn hand_over(&mut self, number: u64, program: &Program, wiring: &Wiring) -> Option<i32> {
        let (poll, timers) = (&mut self.poll, &mut self.timers);
        self.supervisors
            .hand_over(number, program, wiring, poll, timers)
    }
}
