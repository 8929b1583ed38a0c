//! What counts as activity for the idle time of the lease (`lease`), and where it is seen.
//!
//! A sandbox is active while a request is open, a command runs or is queued, a process of the user lives,
//! or a TCP connection is established, and when it has used processor time (`Activity::is_shown_by`). A
//! process counts as long as it lives, even asleep, unless it is one of ours or a persistent shell that
//! waits for its next command. Processes, connections and processor time are read from /proc.

use crate::processes::{self, Process};
use crate::sys;
use std::collections::{HashMap, HashSet};

/// The beginning of a longer table of connections is enough.
const MAX_TABLE: usize = 1 << 20;
const ESTABLISHED: &str = "01";
/// Processor time is activity when it is more than a hundredth of the time since the last check, and
/// more than two ticks of the kernel's count: a single clock interrupt can cost one tick.
const CPU_SHARE: u64 = 100;
const CPU_TICKS: u64 = 2;

#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub ticks: u64,
    pub tick_ns: u64,
}

#[derive(Debug, Default)]
pub struct Signs {
    /// A request is open, or a command is running or queued.
    pub requested: bool,
    /// Living processes of the user, without idle shells.
    pub children: usize,
    /// Ends of established TCP connections.
    pub connections: usize,
    /// Processor time used so far by all processes below the runner; `None` when it was not read.
    pub cpu: Option<Cpu>,
}

impl Signs {
    /// Return the signs of an open request or command, which need no closer look.
    pub fn requested() -> Signs {
        Signs {
            requested: true,
            ..Signs::default()
        }
    }
}

/// The rule, and the processor time at the last check, with the time of that check.
#[derive(Default)]
pub struct Activity {
    cpu: Option<(u64, u64)>,
}

impl Activity {
    /// Report whether the signs of a check at `now` (work clock, in ns) are activity.
    pub fn is_shown_by(&mut self, signs: &Signs, now: u64) -> bool {
        let grew = match (signs.cpu, self.cpu) {
            (Some(cpu), Some((before, at))) => {
                // It can also fall: a process whose parent ignores its death takes its count along.
                let ticks = cpu.ticks.abs_diff(before);
                let ns = ticks.saturating_mul(cpu.tick_ns);
                ticks > CPU_TICKS && ns.saturating_mul(CPU_SHARE) > now.saturating_sub(at)
            }
            _ => false,
        };
        if let Some(cpu) = signs.cpu {
            self.cpu = Some((cpu.ticks, now));
        }
        grew || signs.requested || signs.children > 0 || signs.connections > 0
    }
}

/// Look at processes and connections. `at_rest` are the pids that do not count as activity, and `gate` is
/// the port of a process beside us through which our own clients come.
pub fn look(at_rest: HashSet<i32>, gate: Option<u16>) -> Signs {
    let me = std::process::id() as i32;
    let (children, ticks) = below(me, &processes::all().unwrap_or_default(), &at_rest);
    let tables: [&[u8]; 2] = [b"/proc/self/net/tcp", b"/proc/self/net/tcp6"];
    let connections = tables
        .iter()
        .filter_map(|path| sys::read_file(path, MAX_TABLE).ok())
        .map(|table| established(&table, gate))
        .sum();
    Signs {
        requested: false,
        children,
        connections,
        cpu: Some(Cpu {
            ticks,
            tick_ns: 1_000_000_000 / processes::constant(libc::_SC_CLK_TCK),
        }),
    }
}

/// Return how many processes below `root` live and are not at rest, and the processor time of all of
/// them, dead ones included.
fn below(root: i32, processes_found: &[Process], at_rest: &HashSet<i32>) -> (usize, u64) {
    let parents: HashMap<i32, i32> = processes_found.iter().map(|p| (p.pid, p.ppid)).collect();
    let descends = |pid: i32| {
        let mut at = pid;
        // A chain that is longer than the list of processes is a race of pids.
        for _ in 0..processes_found.len() {
            match parents.get(&at) {
                Some(&parent) if parent == root => return true,
                Some(&parent) => at = parent,
                None => return false,
            }
        }
        false
    };
    let (mut count, mut ticks) = (0, 0);
    for process in processes_found {
        if process.pid == root {
            // Our own processor time is not activity of the sandbox.
            ticks += process.child_ticks;
        } else if descends(process.pid) {
            ticks += process.cpu_ticks + process.child_ticks;
            count += usize::from(process.alive() && !at_rest.contains(&process.pid));
        }
    }
    (count, ticks)
}

fn established(table: &[u8], gate: Option<u16>) -> usize {
    let text = String::from_utf8_lossy(table);
    let gate = gate.map(|port| format!(":{:04X}", port));
    let counts = |line: &&str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        // Both ends are here if a proxy in the same machine connects to the gate.
        let ends = [words.next().unwrap_or(""), words.next().unwrap_or("")];
        let ours = gate
            .as_deref()
            .is_some_and(|gate| ends.iter().any(|end| end.ends_with(gate)));
        !ours && words.next() == Some(ESTABLISHED)
    };
    text.lines().skip(1).filter(counts).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, ppid: i32, state: u8, ticks: u64) -> Process {
        Process {
            pid,
            ppid,
            group: 0,
            state,
            threads: 1,
            cpu_ticks: ticks,
            child_ticks: 1000 * ticks,
            start: 0,
            rss_pages: 0,
            name: Vec::new(),
        }
    }

    const SECOND: u64 = 1_000_000_000;

    fn used(ticks: u64) -> Signs {
        let tick_ns = 10_000_000;
        Signs {
            cpu: Some(Cpu { ticks, tick_ns }),
            ..Signs::default()
        }
    }

    #[test]
    fn processor_time_counts_as_a_share_of_the_elapsed_time() {
        let mut activity = Activity::default();
        let mut after =
            |seconds: u64, ticks: u64| activity.is_shown_by(&used(ticks), seconds * SECOND);
        assert!(
            !after(1, 500),
            "the first check has nothing to compare with"
        );
        assert!(!after(2, 502), "two ticks are noise");
        assert!(after(3, 510));
        assert!(!after(20, 515), "five ticks in 17 s do not count");
        assert!(after(21, 400), "the count fell");
    }

    #[test]
    fn requests_processes_and_connections_are_activity() {
        let mut activity = Activity::default();
        let children = Signs {
            children: 1,
            ..Signs::default()
        };
        let connections = Signs {
            connections: 1,
            ..Signs::default()
        };
        assert!(!activity.is_shown_by(&Signs::default(), 1));
        for signs in [Signs::requested(), children, connections] {
            assert!(activity.is_shown_by(&signs, 1), "{:?}", signs);
        }
    }

    #[test]
    fn only_living_processes_below_us_that_are_not_at_rest_count() {
        let processes_found = [
            process(1, 0, b'S', 7),
            process(5, 1, b'S', 1),
            process(6, 5, b'S', 2),
            process(7, 6, b'S', 3),
            process(8, 1, b'Z', 4),
            process(9, 0, b'R', 50),
        ];
        let rest = |pids: &[i32]| pids.iter().copied().collect::<HashSet<i32>>();
        assert_eq!(below(1, &processes_found, &rest(&[5, 6])), (1, 10 + 17_000));
        assert_eq!(below(1, &processes_found, &rest(&[5, 6, 7])).0, 0);
        assert_eq!(below(2, &processes_found, &rest(&[])), (0, 0));
    }

    #[test]
    fn circle_of_parents_is_left() {
        let processes_found = [process(5, 6, b'S', 1), process(6, 5, b'S', 1)];
        assert_eq!(below(1, &processes_found, &HashSet::new()), (0, 0));
    }

    #[test]
    fn listening_socket_does_not_count_as_connection() {
        // Linux 6.18, /proc/net/tcp; cut after the columns around the state.
        let table = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n\
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
   1: 0100007F:1F90 0100007F:A2C4 01 00000000:00000000 00:00000000\n\
   2: 0100007F:A2C4 0100007F:1F90 01 00000000:00000000 00:00000000\n\
   3: 0100007F:A2C6 0100007F:1F90 06 00000000:00000000 03:00001770\n";
        assert_eq!(established(table, None), 2);
        assert_eq!(established(table, Some(0x1F90)), 0);
        assert_eq!(established(table, Some(0x1F91)), 2);
        assert_eq!(established(b"", None), 0);
    }
}
