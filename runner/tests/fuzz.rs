//! Mutated frames: no crash, no hang, and a fresh connection always answers.
//!
//! `SANDKASTEN_FUZZ_FRAMES` sets how many (default 20,000), `SANDKASTEN_FUZZ_SEED` the seed.

// promise: P09

use crate::client::*;
use std::io::{Read, Write};
use std::time::Duration;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64*: repeatable, and good enough to pick mutations.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

const SEEDS: &[&str] = &[
    r#"{"verb":"ping"}"#,
    r#"{"verb":"exec.start","exec_id":"f1","argv":["true"]}"#,
    r#"{"verb":"exec.start","exec_id":"f2","argv":["cat"],"stdin":"stream","deadline_ms":50,"grace_ms":10}"#,
    r#"{"verb":"exec.start","exec_id":"f3","shell":"s","command":"echo hi; cd /","env":{"A":"b"},"cwd":"/tmp"}"#,
    r#"{"verb":"exec.start","exec_id":"f4","argv":["echo","x"],"pty":{"rows":3,"cols":4},"key":"k","follow":false}"#,
    r#"{"verb":"exec.output","exec_id":"f1","since_seq":0,"follow":true}"#,
    r#"{"verb":"exec.wait","exec_id":"f1","timeout_ms":5}"#,
    r#"{"verb":"exec.signal","exec_id":"f2","signal":9,"tree":true}"#,
    r#"{"verb":"exec.stdin","exec_id":"f2","close":true}"#,
    r#"{"verb":"exec.resize","exec_id":"f4","rows":3,"cols":9}"#,
    r#"{"verb":"exec.list"}"#,
    r#"{"verb":"shell.list"}"#,
    r#"{"verb":"shell.close","name":"s"}"#,
    r#"{"verb":"fs.stat","path":"/etc/hostname","deny":["/root"]}"#,
    r#"{"verb":"fs.list","path":"/etc","recursive":true,"limit":5}"#,
    r#"{"verb":"fs.read","path":"/etc/passwd","offset":1,"limit":10}"#,
    r#"{"verb":"fs.write","path":"fuzzed","mode":420,"within":["/nowhere"]}"#,
    r#"{"verb":"fs.watch","path":"."}"#,
    r#"{"verb":"fs.tar_out","path":"."}"#,
    r#"{"verb":"fs.tar_in","path":"t"}"#,
    r#"{"verb":"proc.list"}"#,
    r#"{"verb":"port.connect","port":1}"#,
    r#"{"verb":"stats"}"#,
    r#"{"verb":"freeze","frozen":false}"#,
];

fn frame(dice: &mut Dice) -> Vec<u8> {
    let kind = [2u8, 2, 2, 2, 3, 4, 5, 6][dice.roll(8)];
    let mut body = match kind {
        2 => SEEDS[dice.roll(SEEDS.len())].as_bytes().to_vec(),
        3 => vec![b'd'; dice.roll(3000)],
        5 => (dice.roll(100_000) as u32).to_be_bytes().to_vec(),
        _ => Vec::new(),
    };
    if dice.roll(3) > 0 {
        mutate(&mut body, dice);
    }
    let stream = dice.roll(12) as u32;
    let mut length = (body.len() + 5) as u32;
    if dice.roll(400) == 0 {
        length = dice.roll(usize::MAX >> 32) as u32;
    }
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.push(if dice.roll(300) == 0 {
        dice.roll(256) as u8
    } else {
        kind
    });
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn mutate(body: &mut Vec<u8>, dice: &mut Dice) {
    const WORDS: &[&str] = &[
        "-1",
        "null",
        "18446744073709551615",
        "\"\"",
        "[]",
        "{}",
        "1e999",
        "\\u0000",
        "true",
    ];
    for _ in 0..1 + dice.roll(3) {
        if body.is_empty() {
            return;
        }
        let at = dice.roll(body.len());
        match dice.roll(6) {
            // Replacing a value keeps the JSON valid more often than a flipped bit.
            0..=2 => {
                let word = WORDS[dice.roll(WORDS.len())];
                let colon = body[at..]
                    .iter()
                    .position(|&c| c == b':')
                    .map(|i| at + i + 1);
                if let Some(start) = colon {
                    let rest = body[start..].iter().position(|&c| c == b',' || c == b'}');
                    let end = rest.map_or(body.len(), |i| start + i);
                    body.splice(start..end, word.bytes());
                }
            }
            3 => body[at] = dice.roll(256) as u8,
            4 => body.truncate(at),
            _ => body.insert(at, dice.roll(256) as u8),
        }
    }
}

#[test]
fn mutated_frames_neither_crash_nor_hang_the_runner() {
    let total = setting("SANDKASTEN_FUZZ_FRAMES", 20_000);
    let seed = setting("SANDKASTEN_FUZZ_SEED", 1);
    let mut dice = Dice(seed | 1);
    let mut runner = Runner::start();
    let mut sent = 0;
    while sent < total {
        let mut client = runner.connect();
        client
            .socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let mut sink = vec![0u8; 1 << 16];
        for _ in 0..200 {
            sent += 1;
            let bytes = frame(&mut dice);
            if client.socket.write_all(&bytes).is_err() {
                break;
            }
            if dice.roll(4) == 0 {
                if let Ok(0) = client.socket.read(&mut sink) {
                    break;
                }
            }
        }
        drop(client);
        runner.assert_alive();
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", runner.pid()))
        .unwrap()
        .count();
    assert!(open < 2000, "{open} descriptors are open");
}

#[test]
fn random_bytes_on_the_wire_are_refused() {
    let mut runner = Runner::start();
    let mut dice = Dice(7);
    for _ in 0..200 {
        let mut client = runner.connect();
        let bytes: Vec<u8> = (0..dice.roll(5000)).map(|_| dice.roll(256) as u8).collect();
        let _closed = client.socket.write_all(&bytes);
    }
    runner.assert_alive();
}
