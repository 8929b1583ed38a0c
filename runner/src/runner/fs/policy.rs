//! Which real paths a request may access: `deny` prefixes, and for writing verbs `within`.
//!
//! Pure but for one thing: a `deny` prefix that is itself a symlink also denies its target. `within` is
//! taken literally, because the owner of a component of it could point it elsewhere. Every refusal is
//! `blocked`. Paths passed to this module must be real ones (symlinks resolved).

use crate::fs::names;
use crate::wire::handler::Failure;

#[derive(Debug, Clone, Default)]
pub struct Policy {
    deny: Vec<Vec<u8>>,
    within: Option<Vec<Vec<u8>>>,
}

impl Policy {
    /// `resolve` returns the real path of a prefix, if it has one.
    pub fn new(
        deny: Vec<Vec<u8>>,
        within: Option<Vec<Vec<u8>>>,
        resolve: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Policy {
        let mut prefixes: Vec<Vec<u8>> = deny.iter().map(|p| names::clean(p)).collect();
        for prefix in &deny {
            if let Some(real) = resolve(prefix) {
                if !prefixes.contains(&real) {
                    prefixes.push(real);
                }
            }
        }
        Policy {
            deny: prefixes,
            within: within.map(|paths| paths.iter().map(|p| names::clean(p)).collect()),
        }
    }

    /// Report whether the policy needs real paths; then a path that cannot be resolved is refused.
    pub fn is_set(&self) -> bool {
        !self.deny.is_empty() || self.within.is_some()
    }

    pub fn denies(&self, path: &[u8]) -> bool {
        self.deny.iter().any(|prefix| names::under(path, prefix))
    }

    /// Check that `path` may be read.
    pub fn check(&self, path: &[u8]) -> Result<(), Failure> {
        if self.denies(path) {
            return Err(blocked(path, "is a path that this request may not access"));
        }
        Ok(())
    }

    /// Check that the entry `name` of the directory `dir` may be created, changed or removed.
    pub fn check_entry(&self, dir: &[u8], name: &[u8]) -> Result<(), Failure> {
        let path = names::join(dir, name);
        self.check(&path)?;
        self.check_inside(dir)
    }

    /// Check that the directory `dir` may be written to.
    pub fn check_inside(&self, dir: &[u8]) -> Result<(), Failure> {
        match &self.within {
            Some(prefixes) if !prefixes.iter().any(|prefix| names::under(dir, prefix)) => Err(
                blocked(dir, "is outside the directories this request may write to"),
            ),
            _ => Ok(()),
        }
    }

    /// Check that the whole tree at `path` may be removed or moved: nothing denied may lie in it.
    pub fn check_tree(&self, path: &[u8]) -> Result<(), Failure> {
        if self.deny.iter().any(|prefix| names::under(prefix, path)) {
            return Err(blocked(path, "holds a path this request may not touch"));
        }
        Ok(())
    }
}

fn blocked(path: &[u8], why: &str) -> Failure {
    Failure::new("blocked", format!("{} {}", names::show(path), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(deny: &[&str], within: Option<&[&str]>) -> Policy {
        let bytes = |list: &[&str]| list.iter().map(|p| p.as_bytes().to_vec()).collect();
        Policy::new(bytes(deny), within.map(bytes), |_| None)
    }

    #[test]
    fn prefix_covers_itself_and_paths_below_but_not_similar_names() {
        let policy = policy(&["/root/"], None);
        assert!(policy.denies(b"/root"));
        assert!(policy.denies(b"/root/a/b"));
        assert!(!policy.denies(b"/rooted"));
        assert!(!policy.denies(b"/"));
    }

    #[test]
    fn root_as_prefix_covers_everything() {
        assert!(policy(&["/"], None).denies(b"/anything"));
        assert!(policy(&[], Some(&["/"])).check_inside(b"/a").is_ok());
    }

    #[test]
    fn empty_within_allows_nothing_and_missing_within_everything() {
        assert_eq!(
            policy(&[], Some(&[])).check_inside(b"/a").unwrap_err().code,
            "blocked"
        );
        assert!(policy(&[], None).check_inside(b"/a").is_ok());
    }

    #[test]
    fn within_applies_to_the_parent_and_deny_to_the_entry() {
        let policy = policy(&["/w/no"], Some(&["/w"]));
        assert!(policy.check_entry(b"/w", b"yes").is_ok());
        assert_eq!(
            policy.check_entry(b"/w", b"no").unwrap_err().code,
            "blocked"
        );
        assert_eq!(policy.check_entry(b"/", b"w").unwrap_err().code, "blocked");
    }

    #[test]
    fn tree_that_contains_a_denied_path_is_refused() {
        let policy = policy(&["/etc/passwd"], None);
        assert_eq!(policy.check_tree(b"/etc").unwrap_err().code, "blocked");
        assert!(policy.check_tree(b"/etc/apt").is_ok());
    }

    #[test]
    fn denied_symlink_denies_its_target() {
        let policy = Policy::new(vec![b"/bin".to_vec()], None, |_| Some(b"/usr/bin".to_vec()));
        assert!(policy.denies(b"/usr/bin/sh"));
        assert!(policy.denies(b"/bin/sh"));
    }
}
