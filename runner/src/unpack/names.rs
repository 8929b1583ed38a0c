//! Names of members, split into parts: what each means in a layer, and which are refused. Pure.

use super::failure::{hostile, limit, malformed, show, Outcome};

/// The longest path that the kernel takes; a longer one could not be used inside either.
const MOST_PATH: usize = 4096;
const MOST_NAME: usize = 255;
/// Each level costs an open descriptor, and some limits are at 1,024.
const MOST_DEPTH: usize = 256;

const WHITEOUT: &[u8] = b".wh.";
const METADATA: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    Member,
    /// Hides a name of the layers below; the last part of `path` is that name.
    Whiteout,
    /// Hides what the layers below have in the directory `path`.
    Opaque,
    /// Metadata of a layer store, to be ignored.
    Nothing,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub meaning: Meaning,
    pub path: Vec<Vec<u8>>,
}

/// Split a name at its slashes. An absolute name counts from the target, as in Docker.
pub fn path(name: &[u8]) -> Outcome<Vec<Vec<u8>>> {
    if name.len() > MOST_PATH {
        return Err(limit(format!("a name longer than {} bytes", MOST_PATH)));
    }
    let mut path = Vec::new();
    for part in name.split(|&c| c == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(hostile(format!("{} contains '..'", show(name)))),
            _ => {}
        }
        if part.len() > MOST_NAME {
            return Err(limit(format!("a part of a name longer than {}", MOST_NAME)));
        }
        if part.contains(&0) {
            return Err(malformed("a name contains a NUL byte"));
        }
        path.push(part.to_vec());
    }
    if path.len() > MOST_DEPTH {
        return Err(limit(format!("a path deeper than {}", MOST_DEPTH)));
    }
    Ok(path)
}

pub fn place(name: &[u8]) -> Outcome<Place> {
    let mut path = path(name)?;
    let is = |meaning, path| Ok(Place { meaning, path });
    if path.iter().all(|part| !part.starts_with(WHITEOUT)) {
        return is(Meaning::Member, path);
    }
    if path.last().map(Vec::as_slice) == Some(OPAQUE) {
        path.pop();
        refuse_inner(&path, name)?;
        return is(Meaning::Opaque, path);
    }
    if path.iter().any(|part| part.starts_with(METADATA)) {
        return is(Meaning::Nothing, path);
    }
    // Not empty: one of its parts is a whiteout.
    let last = path.pop().unwrap_or_default();
    refuse_inner(&path, name)?;
    match last.strip_prefix(WHITEOUT) {
        Some(b"" | b"." | b"..") | None => {
            Err(hostile(format!("{} is not a valid whiteout", show(name))))
        }
        Some(hidden) => {
            path.push(hidden.to_vec());
            is(Meaning::Whiteout, path)
        }
    }
}

/// Nothing may be below a whiteout.
fn refuse_inner(path: &[Vec<u8>], name: &[u8]) -> Outcome<()> {
    if path.iter().any(|part| part.starts_with(WHITEOUT)) {
        return Err(hostile(format!("{} lies below a whiteout", show(name))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    fn parsed(name: &str) -> Result<(Meaning, String), Kind> {
        let place = place(name.as_bytes()).map_err(|failure| failure.kind)?;
        let path: Vec<&str> = place
            .path
            .iter()
            .map(|p| std::str::from_utf8(p).unwrap())
            .collect();
        Ok((place.meaning, path.join("/")))
    }

    #[test]
    fn names_are_relative_to_the_target() {
        for (name, path) in [
            ("a", "a"),
            ("./a//b/./c/", "a/b/c"),
            ("/etc/passwd", "etc/passwd"),
            ("./", ""),
            ("...", "..."),
            (".wh", ".wh"),
            ("a.wh.b", "a.wh.b"),
            ("a\nb", "a\nb"),
        ] {
            assert_eq!(
                parsed(name),
                Ok((Meaning::Member, path.to_string())),
                "{}",
                name
            );
        }
        for name in ["..", "a/../b", "../x", "/..", "a/.."] {
            assert_eq!(parsed(name), Err(Kind::Hostile), "{}", name);
        }
    }

    #[test]
    fn whiteout_hides_the_name_after_its_prefix() {
        assert_eq!(parsed("a/.wh.b"), Ok((Meaning::Whiteout, "a/b".into())));
        assert_eq!(parsed(".wh.b/"), Ok((Meaning::Whiteout, "b".into())));
        assert_eq!(parsed(".wh...."), Ok((Meaning::Whiteout, "...".into())));
        assert_eq!(parsed("a/.wh..wh..opq"), Ok((Meaning::Opaque, "a".into())));
        assert_eq!(parsed(".wh..wh..opq"), Ok((Meaning::Opaque, "".into())));
        assert_eq!(parsed(".wh..wh.plnk/1.2").unwrap().0, Meaning::Nothing);
        for name in [
            ".wh.",
            ".wh..",
            ".wh...",
            "a/.wh.",
            ".wh.a/b",
            ".wh.a/.wh..wh..opq",
        ] {
            assert_eq!(parsed(name), Err(Kind::Hostile), "{}", name);
        }
    }

    #[test]
    fn names_are_limited_in_length_and_depth() {
        assert!(parsed(&"x".repeat(255)).is_ok());
        assert_eq!(parsed(&"x".repeat(256)), Err(Kind::Limit));
        assert!(parsed(&"a/".repeat(256)).is_ok());
        assert_eq!(parsed(&"a/".repeat(257)), Err(Kind::Limit));
        assert_eq!(parsed(&"a/".repeat(3000)), Err(Kind::Limit));
    }
}
