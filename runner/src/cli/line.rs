//! The command line in parts. Pure.
//!
//! Only options that are written in full and ordinary are known. `Line::parse` returns None for anything
//! else (help, `-xVALUE`, an option that is not listed here). It checks no values. A test compares these
//! tables with the declarations of the other command line.

/// How often an option may be given, and whether it has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Many,
    Switch,
}
use Kind::{Many, One, Switch};

/// The spellings of options, the names of their values, and their kinds.
type Table = &'static [(&'static str, &'static str, Kind)];

const GLOBAL: Table = &[
    ("--data-dir", "data_dir", One),
    ("--backend", "backend", One),
    ("--url", "url", One),
    ("--api-key", "api_key", One),
];
const COMMANDS: &[(&str, Table)] = &[
    ("version", &[]),
    (
        "ls",
        &[
            ("--all", "all", Switch),
            ("--quiet", "quiet", Switch),
            ("-q", "quiet", Switch),
        ],
    ),
    (
        "exec",
        &[
            ("--timeout", "timeout", One),
            ("--cwd", "cwd", One),
            ("-w", "cwd", One),
            ("--env", "env", Many),
            ("-e", "env", Many),
            ("--shell", "shell", One),
        ],
    ),
    (
        "run",
        &[
            ("-c", "code", One),
            ("--runtime", "runtime", One),
            ("-r", "runtime", One),
            ("--timeout", "timeout", One),
            ("--backend", "backend", One),
            ("--image", "image", One),
            ("-i", "image", One),
            ("--env", "env", Many),
            ("-e", "env", Many),
        ],
    ),
];

/// The values of options, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(&'static str, String)>);

impl Options {
    /// Return the value that counts: the last one.
    pub fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().rev().find(|(field, _)| *field == name);
        pair.map(|(_, value)| value.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(field, _)| *field == name)
            .map(|(_, value)| value.as_str())
    }

    /// Return the environment of `-e`; None if one of them is not NAME=VALUE.
    pub fn environment(&self) -> Option<serde_json::Map<String, serde_json::Value>> {
        let pair = |word: &str| {
            let (name, value) = word.split_once('=').filter(|(name, _)| !name.is_empty())?;
            Some((name.to_owned(), value.into()))
        };
        self.all("env").map(pair).collect()
    }

    /// Return the seconds of `--timeout`, None if it was not given; Err if it is not a whole number.
    pub fn timeout(&self) -> Result<Option<f64>, ()> {
        let plain = |text: &str| text.len() < 10 && text.bytes().all(|byte| byte.is_ascii_digit());
        match self.get("timeout") {
            None => Ok(None),
            Some(text) if plain(text) => text.parse().map(Some).map_err(drop),
            Some(_) => Err(()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub command: &'static str,
    /// The options before the command.
    pub before: Options,
    pub options: Options,
    /// What comes after the options.
    pub words: Vec<String>,
}

impl Line {
    pub fn parse(words: &[String]) -> Option<Line> {
        let version = ["version".to_owned()];
        let words = if words == ["--version"] {
            &version
        } else {
            words
        };
        let (before, rest) = options_before(words, GLOBAL)?;
        let (name, rest) = rest.split_first()?;
        let (command, table) = COMMANDS.iter().find(|(command, _)| command == name)?;
        let (options, rest) = options_before(rest, table)?;
        Some(Line {
            command,
            before,
            options,
            words: rest.to_vec(),
        })
    }
}

/// Return the options at the beginning, and the words after them.
fn options_before(words: &[String], table: Table) -> Option<(Options, &[String])> {
    let mut options = Options::default();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        if word == "-" || !word.starts_with('-') {
            break;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name, Some(value)),
            _ => (word.as_str(), None),
        };
        let (_, field, kind) = table.iter().find(|(option, ..)| *option == name)?;
        rest = after;
        let value = match (kind, value) {
            (Switch, None) => "",
            (Switch, Some(_)) => return None,
            (One | Many, Some(value)) => value,
            (One | Many, None) => {
                let (value, after) = rest.split_first()?;
                rest = after;
                value
            }
        };
        options.0.push((*field, value.to_owned()));
    }
    Some((options, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Line> {
        let words: Vec<String> = text.split(' ').map(Into::into).collect();
        Line::parse(&words)
    }

    #[test]
    fn options_are_parted_from_words() {
        let line = parse("--url unix:///x run -r sh --env=A=1 -e B= -c -x a -r").unwrap();
        assert_eq!(
            (line.command, line.before.get("url")),
            ("run", Some("unix:///x"))
        );
        assert_eq!(line.options.get("runtime"), Some("sh"));
        assert_eq!(line.options.get("code"), Some("-x"));
        assert_eq!(line.words, ["a", "-r"]);
        let environment = serde_json::to_string(&line.options.environment().unwrap()).unwrap();
        assert_eq!(environment, r#"{"A":"1","B":""}"#);
    }

    #[test]
    fn the_last_value_counts() {
        assert_eq!(
            parse("run -r sh -r node x").unwrap().options.get("runtime"),
            Some("node")
        );
    }

    #[test]
    fn anything_else_is_left_to_the_other_parser() {
        for text in [
            "--help",
            "run --help",
            "run -cx",
            "run -c",
            "run --jso -c x",
            "ls --json",
            "ls --all=1",
            "rm x",
            "--embedded ls",
            "run -- x",
            "exec -it x sh",
            "--url",
            "",
            "run --network full -c x",
        ] {
            assert_eq!(parse(text), None, "{}", text);
        }
    }

    #[test]
    fn only_a_whole_number_is_a_timeout() {
        let timeout = |text: &str| parse(text).unwrap().options.timeout();
        assert_eq!(timeout("run x"), Ok(None));
        assert_eq!(timeout("run --timeout 90 x"), Ok(Some(90.0)));
        for text in [
            "run --timeout 1.5 x",
            "run --timeout= x",
            "run --timeout 1m x",
        ] {
            assert_eq!(timeout(text), Err(()), "{}", text);
        }
        assert_eq!(parse("run -e A x").unwrap().options.environment(), None);
        assert_eq!(parse("run -e =A x").unwrap().options.environment(), None);
    }
}
