//! Paths as bytes: joining, cleaning, splitting, showing. Does not look at any file system.

pub use crate::tar::show;

/// Return `dir/name`, without doubling the slash of the root.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + name.len() + 1);
    path.extend_from_slice(dir);
    if !dir.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Return the components between slashes, without empty ones and `.`.
pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&c| c == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
}

/// Return an absolute path without `.`, `..`, doubled or trailing slashes, from the path only.
pub fn clean(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in components(path) {
        if part == b".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    let mut cleaned = vec![b'/'];
    cleaned.extend_from_slice(&parts.join(&b'/'));
    cleaned
}

/// Report whether `path` is `prefix` or lies below it.
pub fn under(path: &[u8], prefix: &[u8]) -> bool {
    prefix == b"/"
        || (path.starts_with(prefix) && matches!(path.get(prefix.len()), None | Some(b'/')))
}

pub struct Split<'a> {
    pub dir: &'a [u8],
    pub name: &'a [u8],
    /// The path ended with a slash, so it can only mean a directory.
    pub slash: bool,
}

/// Return parent and last name; `None` where the path has no name (`/`, `.`, `..`).
pub fn split(path: &[u8]) -> Option<Split<'_>> {
    let end = path.iter().rposition(|&c| c != b'/')? + 1;
    let start = path[..end]
        .iter()
        .rposition(|&c| c == b'/')
        .map_or(0, |at| at + 1);
    let name = &path[start..end];
    if name == b"." || name == b".." {
        return None;
    }
    Some(Split {
        dir: &path[..start],
        name,
        slash: end < path.len(),
    })
}

/// Return the last component of a cleaned absolute path; the name of the root is `/`.
pub fn base_name(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&c| c == b'/') {
        Some(at) if at + 1 < path.len() => &path[at + 1..],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_never_leaves_the_root() {
        for (path, cleaned) in [
            ("/", "/"),
            ("//a/./b//", "/a/b"),
            ("/a/../../b", "/b"),
            ("/..", "/"),
            ("/a/...", "/a/..."),
        ] {
            assert_eq!(clean(path.as_bytes()), cleaned.as_bytes(), "{}", path);
        }
    }

    #[test]
    fn path_without_a_last_name_does_not_split() {
        for path in ["", "/", "//", ".", "..", "a/..", "a/.", "a/../"] {
            assert!(split(path.as_bytes()).is_none(), "{}", path);
        }
    }

    #[test]
    fn splitting_keeps_the_parent_and_the_trailing_slash() {
        for (path, dir, name, slash) in [
            ("a", "", "a", false),
            ("/a", "/", "a", false),
            ("/a/b//", "/a/", "b", true),
            ("-x/\n", "-x/", "\n", false),
        ] {
            let parts = split(path.as_bytes()).unwrap();
            assert_eq!(
                (parts.dir, parts.name, parts.slash),
                (dir.as_bytes(), name.as_bytes(), slash)
            );
        }
    }

    #[test]
    fn name_of_the_root_is_a_slash() {
        assert_eq!(base_name(b"/"), b"/");
        assert_eq!(base_name(b"/a/b"), b"b");
    }
}
