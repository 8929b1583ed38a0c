//! Output rings over the wire: exact caps, sequence numbers, following, falling behind.

use crate::client::*;
use serde_json::json;
use std::time::Duration;

const PRINT: &str = "import sys; n=int(sys.argv[1]); \
sys.stdout.buffer.write((bytes(range(251))*(n//251+1))[:n])";

fn pattern(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|i| (i % 251) as u8).collect()
}

#[test]
fn head_and_tail_are_kept_exactly() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for (total, cap) in [
        (0usize, 1001usize),
        (1000, 1001),
        (1001, 1001),
        (1002, 1001),
        (300_000, 1001),
        (300_000, 0),
        (300_000, 1),
    ] {
        let id = format!("r{total}-{cap}");
        let done = client.exec(json!({"exec_id": id, "stdout_cap": cap,
            "argv": ["python3", "-c", PRINT, total.to_string()]}));
        assert_eq!(done.exec()["stdout_bytes"], json!(total));
        assert_eq!(done.exec()["truncated"], json!(total > cap));
        let stream = client.open("exec.output", json!({ "exec_id": id }));
        let kept = client.finish(stream);
        let (head, tail) = (total.min(cap - cap / 2), cap / 2);
        let tail_from = head.max(total.saturating_sub(tail));
        let want = [pattern(0, head), pattern(tail_from, total)].concat();
        assert!(kept.bytes(1) == want, "{id}");
        // A gap shows as an offset that jumps, and nowhere else.
        let mut at = 0u64;
        let mut jumps = Vec::new();
        for chunk in &kept.chunks {
            if chunk.offset != at {
                jumps.push((at, chunk.offset));
            }
            at = chunk.offset + chunk.bytes.len() as u64;
        }
        let gap = total > cap && tail > 0;
        assert_eq!(
            jumps,
            if gap {
                vec![(head as u64, tail_from as u64)]
            } else {
                vec![]
            },
            "{id}"
        );
    }
}

#[test]
fn sequence_numbers_resume_without_loss_or_repeat() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let script = "for i in 1 2 3 4 5 6 7 8; do echo o$i; echo e$i >&2; sleep 0.01; done";
    let all = client.exec(json!({"exec_id": "s", "argv": ["sh", "-c", script]}));
    let seqs: Vec<u64> = all.chunks.iter().map(|c| c.seq).collect();
    assert!(seqs.windows(2).all(|w| w[0] < w[1]), "{seqs:?}");
    assert_eq!(all.exec()["last_seq"], json!(seqs.last().unwrap()));
    for cut in 0..=all.chunks.len() {
        let since = if cut == 0 { 0 } else { all.chunks[cut - 1].seq };
        let stream = client.open("exec.output", json!({"exec_id": "s", "since_seq": since}));
        assert_eq!(client.finish(stream).chunks, all.chunks[cut..]);
    }
}

#[test]
fn reader_that_keeps_up_sees_every_byte_beyond_the_cap() {
    let runner = Runner::start();
    let mut client = runner.connect();
    // It prints the next piece only when the reader has asked for it, however slow the machine is.
    const PIECE: usize = 100_000;
    let script = "import sys; all=(bytes(range(251))*12000)[:3000000]\n\
        for at in range(0, len(all), 100000):\n sys.stdin.readline()\n \
        sys.stdout.buffer.write(all[at:at+100000]); sys.stdout.flush()";
    let stream = client.start(json!({"argv": ["python3", "-c", script], "stdin": "stream"}));
    client.started(stream);
    let mut got = Vec::new();
    let mut asked = 0;
    loop {
        if got.len() == asked {
            client.send(DATA, stream, b"\n");
            asked += PIECE;
        }
        let frame = client.next(stream);
        match frame.kind {
            CHUNK => {
                let bytes = chunk(&frame.body).bytes;
                assert!(bytes.len() <= 65_536);
                got.extend(bytes);
                client.grant(stream, frame.body.len());
            }
            RESULT => break,
            CREDIT => (),
            kind => panic!("kind {kind}"),
        }
    }
    assert!(got == pattern(0, 3_000_000));
}

#[test]
fn flood_without_a_reader_is_counted_in_constant_memory() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let size = 150_000_000u64;
    let script = format!("head -c {size} /dev/zero; echo end >&2");
    let outcome =
        client.exec(json!({"exec_id": "flood", "argv": ["sh", "-c", script], "follow": false}));
    assert_eq!(outcome.exec()["state"], "running");
    let mut other = runner.connect();
    let mut answered = 0;
    while other
        .call("exec.wait", json!({"exec_id": "flood", "timeout_ms": 1}))
        .unwrap()["state"]
        == "running"
    {
        other.call("ping", json!({})).unwrap();
        answered += 1;
    }
    let exec = other
        .call("exec.wait", json!({"exec_id": "flood"}))
        .unwrap();
    assert_eq!(
        (
            &exec["stdout_bytes"],
            &exec["stderr_bytes"],
            &exec["truncated"]
        ),
        (&json!(size), &json!(4), &json!(true))
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid())).unwrap();
    let anon = status
        .lines()
        .find_map(|l| l.strip_prefix("RssAnon:"))
        .unwrap();
    let anon: u64 = anon.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(anon < 4_000, "{anon} kB");
    // Other requests are answered while it floods.
    assert!(answered > 0);
}

#[test]
fn reader_without_credit_waits_and_others_go_on() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"exec_id": "w", "stdout_cap": 4_000_000,
        "argv": ["python3", "-c", PRINT, "3000000"]}));
    client.started(stream);
    let mut got = 0usize;
    let mut spent = 0usize;
    let mut other = runner.connect();
    assert_eq!(
        other.call("exec.wait", json!({"exec_id": "w"})).unwrap()["exit_code"],
        0
    );
    client.call("ping", json!({})).unwrap();
    // Without a grant no more than the first credit arrives, though the command is over.
    client
        .socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    while let Ok(frame) = client.read_frame() {
        assert_eq!(frame.kind, CHUNK);
        got += frame.body.len() - 17;
        spent += frame.body.len();
    }
    assert!(spent <= 1 << 20, "{spent}");
    client.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    client.grant(stream, 4_000_000);
    let rest = client.finish(stream);
    assert_eq!(got + rest.bytes(1).len(), 3_000_000);
}

#[test]
fn later_output_of_a_daemon_belongs_to_the_finished_command() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let script = format!("({UNTIL_GO}; echo late) & echo early");
    let outcome = client.exec(json!({"exec_id": "d", "argv": ["sh", "-c", script]}));
    assert_eq!(outcome.stdout(), "early\n");
    runner.go();
    let seq = outcome.exec()["last_seq"].clone();
    let late = eventually(|| {
        let stream = client.open("exec.output", json!({"exec_id": "d", "since_seq": seq}));
        match client.finish(stream).stdout() {
            text if text.is_empty() => Err("nothing yet"),
            text => Ok(text),
        }
    });
    assert_eq!(late, "late\n");
}

#[test]
fn old_output_is_dropped_when_it_does_not_fit_and_counts_stay() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for i in 0..5 {
        client.exec(json!({"exec_id": format!("b{i}"), "stdout_cap": 4_000_000,
            "argv": ["python3", "-c", PRINT, "3000000"]}));
    }
    let stream = client.open("exec.output", json!({"exec_id": "b4"}));
    assert_eq!(client.finish(stream).bytes(1).len(), 3_000_000);
    let stream = client.open("exec.output", json!({"exec_id": "b0"}));
    let old = client.finish(stream);
    assert_eq!(
        (old.bytes(1).len(), &old.exec()["stdout_bytes"]),
        (0, &json!(3_000_000))
    );
}
