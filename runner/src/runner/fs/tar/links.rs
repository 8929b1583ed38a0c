//! Where the names and links of an archive may lead: a pure rule over their bytes.

use crate::fs::names;
use crate::wire::handler::Failure;

pub type Path<'a> = [&'a [u8]];

pub fn blocked(path: &[u8], why: &str) -> Failure {
    Failure::new(
        "blocked",
        format!("archive: {} leads {}", names::show(path), why),
    )
}

/// Return the components of a member's name. Absolute names and `..` are `blocked`.
pub fn member_path(name: &[u8]) -> Result<Vec<&[u8]>, Failure> {
    if name.first() == Some(&b'/') {
        return Err(blocked(name, "to an absolute path"));
    }
    let path: Vec<&[u8]> = names::components(name).collect();
    if path.iter().any(|part| *part == b"..") {
        return Err(blocked(name, "outside"));
    }
    Ok(path)
}

/// Check whether a symlink at `path` may have this target. It must stay below the base (`base` is its
/// real path, for absolute targets), and `..` is allowed only at its beginning: after a name, which may
/// be a symlink, it is unknown where `..` leads.
pub fn check_target(path: &Path<'_>, target: &[u8], base: &[u8]) -> Result<(), Failure> {
    let refuse = |why| Err(blocked(target, why));
    let absolute = target.first() == Some(&b'/');
    if absolute && !names::under(target, base) {
        return refuse("to an absolute path");
    }
    let parts: Vec<&[u8]> = names::components(target).collect();
    let climbs = parts.iter().take_while(|part| **part == b"..").count();
    if parts[climbs..].iter().any(|part| *part == b"..") {
        return refuse("where its text does not say");
    }
    if climbs > path.len().saturating_sub(1) {
        return refuse("outside");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str, target: &str) -> Option<&'static str> {
        let path = member_path(path.as_bytes()).unwrap();
        check_target(&path, target.as_bytes(), b"/base")
            .err()
            .map(|failure| failure.code)
    }

    #[test]
    fn names_are_split_and_must_stay_inside() {
        assert_eq!(member_path(b"./a//b/.").unwrap(), [b"a", b"b"]);
        assert!(member_path(b"./").unwrap().is_empty());
        for bad in ["/a", "..", "a/../b", "a/..", "./../a"] {
            assert_eq!(
                member_path(bad.as_bytes()).unwrap_err().code,
                "blocked",
                "{}",
                bad
            );
        }
        assert_eq!(member_path(b"...").unwrap(), [b"..."]);
    }

    #[test]
    fn symlink_may_go_up_as_far_as_the_base() {
        assert_eq!(target("a/b/link", "../../c"), None);
        assert_eq!(target("a/b/link", "../../../c"), Some("blocked"));
        assert_eq!(target("link", "sibling"), None);
        assert_eq!(target("link", ".."), Some("blocked"));
        assert_eq!(target("a/link", ".."), None);
    }

    #[test]
    fn symlink_may_not_go_up_after_a_name() {
        assert_eq!(target("a/link", "b/../../../etc"), Some("blocked"));
        assert_eq!(target("a/b/link", "c/.."), Some("blocked"));
    }

    #[test]
    fn absolute_symlink_must_stay_in_the_base() {
        assert_eq!(target("link", "/etc/passwd"), Some("blocked"));
        assert_eq!(target("link", "/based"), Some("blocked"));
        assert_eq!(target("link", "/base/x"), None);
        assert_eq!(target("link", "/base/../etc"), Some("blocked"));
    }
}
