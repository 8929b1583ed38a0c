//! `ls`: the table of sandboxes, or their ids.

use crate::daemon::{is_printable, Daemon};
use crate::http::{Connection, Lost, Request};
use crate::json::Json;
use crate::line::Line;
use crate::signals::Signals;
use crate::{output, Outcome, Stop, INTERRUPTED};
use sandkasten_runner::sys;
use std::time::Duration;

/// A list takes less; the other command line waits longer and reports it.
const LIST: Duration = Duration::from_secs(10);
const MAX_LIST: usize = 64 << 20;
const COLUMNS: usize = 10;
const HEAD: [&str; COLUMNS] = [
    "ID",
    "IMAGE",
    "BACKEND",
    "STATE",
    "AGE",
    "EXPIRES",
    "MEMORY",
    "WORKSPACE",
    "KEY",
    "LABELS",
];

pub fn show(line: &Line) -> Outcome {
    if !line.words.is_empty() || line.before.has("backend") {
        return Err(Stop::Unusual);
    }
    let daemon = Daemon::find(&line.before).ok_or(Stop::Unusual)?;
    let quiet = line.options.has("quiet");
    let list = match ask(&daemon, quiet) {
        Err(Lost::Signal(libc::SIGINT)) => return Ok(INTERRUPTED),
        Err(Lost::Signal(number)) => return Ok(128 + number),
        list => list.ok().flatten().ok_or(Stop::Unusual)?,
    };
    let now = sys::unix_ms() as f64 / 1000.0;
    let text = if quiet { ids(&list) } else { table(&list, now) };
    output::print(text.ok_or(Stop::Unusual)?.as_bytes())
}

/// Return the list of the daemon; None if it has more pages or there is anything unusual about it.
fn ask(daemon: &Daemon, quiet: bool) -> Result<Option<Json>, Lost> {
    let path = if quiet {
        "/v1/sessions"
    } else {
        "/v1/sessions?usage=true"
    };
    let signals = Signals::catch()?;
    let connection = Connection::open(daemon, &signals)?;
    let response = connection.ask(daemon, &Request::get(path), Some(LIST))?;
    if response.status != 200 || response.has_next_page {
        return Ok(None);
    }
    response.json(MAX_LIST)
}

/// Return the sandboxes, oldest first; None if one of them has no valid time.
fn sorted(list: &Json) -> Option<Vec<(f64, &Json)>> {
    let values = match list {
        Json::List(values) => values,
        _ => return None,
    };
    let with_time = |value| Some((Json::get(value, "created_at_unix").number()?, value));
    let mut sandboxes: Vec<(f64, &Json)> = values.iter().map(with_time).collect::<Option<_>>()?;
    sandboxes.sort_by(|one, other| one.0.total_cmp(&other.0));
    Some(sandboxes)
}

fn ids(list: &Json) -> Option<String> {
    let line = |(_, sandbox): (f64, &Json)| Some(plain(sandbox.get("id"))? + "\n");
    sorted(list)?.into_iter().map(line).collect()
}

/// Return the table; None if a value is missing or has characters that need more than a look.
fn table(list: &Json, now: f64) -> Option<String> {
    let row = |(created, sandbox)| row(sandbox, created, now);
    let rows: Vec<[String; COLUMNS]> = sorted(list)?.into_iter().map(row).collect::<Option<_>>()?;
    let rows = std::iter::once(HEAD.map(Into::into))
        .chain(rows)
        .collect::<Vec<_>>();
    let mut widths = [0; COLUMNS];
    for (width, column) in widths.iter_mut().zip(0..) {
        *width = rows.iter().map(|row| row[column].len()).max()?;
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{:width$}", cell, width = width))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    Some(text)
}

fn row(sandbox: &Json, created: f64, now: f64) -> Option<[String; COLUMNS]> {
    let status = plain(sandbox.get("status"))?;
    let is_live = status == "running" || status == "paused";
    Some([
        plain(sandbox.get("id"))?,
        plain(sandbox.get("image"))?,
        plain(sandbox.get("backend"))?,
        status,
        age(now - created),
        age(sandbox.get("expires_at_unix").number()? - now),
        memory(sandbox.get("usage"), is_live)?,
        optional(sandbox.get("workspace_id"))?,
        optional(sandbox.get("session_key"))?,
        labels(sandbox.get("labels"))?,
    ])
}

/// Return a string; None if it is not one, or a terminal would not show it as it is.
fn plain(value: &Json) -> Option<String> {
    value
        .string()
        .filter(|text| is_printable(text))
        .map(Into::into)
}

fn optional(value: &Json) -> Option<String> {
    if matches!(value, Json::Null) || value.string() == Some("") {
        return Some("-".into());
    }
    plain(value)
}

fn labels(value: &Json) -> Option<String> {
    let pairs = match value {
        Json::Object(pairs) => pairs,
        _ => return None,
    };
    let label = |(name, value): &(String, Json)| {
        Some(format!("{}={}", name, value.string()?)).filter(|text| is_printable(text))
    };
    let labels: Vec<String> = pairs.iter().map(label).collect::<Option<_>>()?;
    Some(if labels.is_empty() {
        "-".into()
    } else {
        labels.join(",")
    })
}

/// Return the memory that a sandbox uses; one that is not live uses none.
fn memory(usage: &Json, is_live: bool) -> Option<String> {
    match (usage, usage.get("memory_bytes")) {
        (_, _) if !is_live => Some("-".into()),
        (Json::Object(_), Json::Null) => Some("-".into()),
        (Json::Object(_), Json::Int(bytes)) if *bytes >= 0 => Some(size(*bytes as u64)),
        _ => None,
    }
}

/// Format a duration: 42s, 12m, 3h 5m, 2d 4h.
fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..=59 => format!("{}s", whole),
        60..=3599 => format!("{}m", whole / 60),
        3600..=86_399 => format!("{}h {}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d {}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Format a number of bytes, rounded half to even as Python does.
fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{} B", bytes);
    }
    let mut shift = 10;
    let mut units = ["KiB", "MiB", "GiB"].into_iter();
    let unit = loop {
        match units.next() {
            Some(unit) if bytes >> shift < 1024 => break unit,
            Some(_) => shift += 10,
            None => break "TiB",
        }
    };
    let (tenths, half) = (u128::from(bytes) * 10, 1u128 << (shift - 1));
    let (whole, rest) = (tenths >> shift, tenths & ((half << 1) - 1));
    let up = rest > half || (rest == half && whole % 2 == 1);
    let rounded = whole + u128::from(up);
    format!("{}.{} {}", rounded / 10, rounded % 10, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_python() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1280, "1.2 KiB"),
            (1792, "1.8 KiB"),
            (1_048_575, "1024.0 KiB"),
            (1_048_576, "1.0 MiB"),
            (1_310_720, "1.2 MiB"),
            (3 << 29, "1.5 GiB"),
            (5 << 40, "5.0 TiB"),
            (5000 << 40, "5000.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn ages_are_those_of_python() {
        for (seconds, text) in [
            (-5.0, "0s"),
            (59.99, "59s"),
            (60.0, "1m"),
            (11_100.0, "3h 5m"),
            (187_200.0, "2d 4h"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }

    fn list(more: &str) -> Json {
        let text = format!(
            r#"[{{"id":"sbx_2","image":"node","backend":"local","status":"ended","labels":{{}},
                 "created_at_unix":990,"expires_at_unix":1100.5}},
                {{"id":"sbx_1","image":"python","backend":"local","status":"running","labels":{{"z":"1","a":"2"}},
                 "created_at_unix":900.5,"expires_at_unix":4600,"usage":{{"memory_bytes":2048}}{}}}]"#,
            more
        );
        Json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_oldest_is_first_and_columns_are_as_wide_as_their_values() {
        assert_eq!(
            table(&list(r#","workspace_id":"w""#), 1000.0).unwrap(),
            "ID     IMAGE   BACKEND  STATE    AGE  EXPIRES  MEMORY   WORKSPACE  KEY  LABELS\n\
             sbx_1  python  local    running  1m   1h 0m    2.0 KiB  w          -    z=1,a=2\n\
             sbx_2  node    local    ended    10s  1m       -        -          -    -\n"
        );
        assert_eq!(ids(&list("")).unwrap(), "sbx_1\nsbx_2\n");
    }

    #[test]
    fn a_value_that_is_missing_or_controls_the_terminal_is_unusual() {
        let escape = r#","workspace_id":"\u001b[2J""#;
        for more in [
            escape,
            r#","session_key":"é""#,
            r#","usage":null"#,
            r#","image":1"#,
            r#","labels":{"a":1}"#,
        ] {
            assert_eq!(table(&list(more), 1000.0), None, "{}", more);
        }
        assert_eq!(table(&Json::parse(b"{}").unwrap(), 1000.0), None);
        assert_eq!(table(&Json::parse(b"[{}]").unwrap(), 1000.0), None);
    }
}
