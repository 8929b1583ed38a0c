//! Which real paths a request may touch: `deny` prefixes, and for writing verbs `within`.
//!
//! Pure but for one thing: a `deny` prefix that is itself a symlink also denies what it leads to.
//! `within` is taken literally, because whoever owns a component of it could point it elsewhere.
//! Every refusal is `blocked`. Paths given here must be real ones (symlinks resolved).

use crate::fs::names;
use crate::wire::handler::Failure;

#[derive(Debug, Clone, Default)]
pub struct Policy {
    deny: Vec<Vec<u8>>,
    within: Option<Vec<Vec<u8>>>,
}

impl Policy {
    /// `resolve` answers the real path of a prefix, if it has one.
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

    /// Whether an answer depends on real paths; then a path that cannot be known is refused.
    pub fn is_set(&self) -> bool {
        !self.deny.is_empty() || self.within.is_some()
    }

    pub fn denies(&self, path: &[u8]) -> bool {
        self.deny.iter().any(|prefix| names::under(path, prefix))
    }

    /// For reading what lies at `path`.
    pub fn check(&self, path: &[u8]) -> Result<(), Failure> {
        if self.denies(path) {
            return Err(blocked(path, "is a path this request may not touch"));
        }
        Ok(())
    }

    /// For making, changing or removing the entry `name` of the directory `dir`.
    pub fn check_entry(&self, dir: &[u8], name: &[u8]) -> Result<(), Failure> {
        let path = names::join(dir, name);
        self.check(&path)?;
        self.check_inside(dir)
    }

    /// For writing into the directory `dir`.
    pub fn check_inside(&self, dir: &[u8]) -> Result<(), Failure> {
        match &self.within {
            Some(prefixes) if !prefixes.iter().any(|prefix| names::under(dir, prefix)) => Err(
                blocked(dir, "is outside the directories this request may write to"),
            ),
            _ => Ok(()),
        }
    }

    /// For removing or moving the whole tree at `path`: nothing denied may lie in it.
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
    fn a_prefix_covers_itself_and_what_is_below_but_not_its_namesakes() {
        let policy = policy(&["/root/"], None);
        assert!(policy.denies(b"/root"));
        assert!(policy.denies(b"/root/a/b"));
        assert!(!policy.denies(b"/rooted"));
        assert!(!policy.denies(b"/"));
    }

    #[test]
    fn the_root_as_prefix_covers_everything() {
        assert!(policy(&["/"], None).denies(b"/anything"));
        assert!(policy(&[], Some(&["/"])).check_inside(b"/a").is_ok());
    }

    #[test]
    fn an_empty_within_allows_nothing_and_a_missing_one_everything() {
        assert_eq!(
            policy(&[], Some(&[])).check_inside(b"/a").unwrap_err().code,
            "blocked"
        );
        assert!(policy(&[], None).check_inside(b"/a").is_ok());
    }

    #[test]
    fn within_speaks_of_the_parent_and_deny_of_the_entry() {
        let policy = policy(&["/w/no"], Some(&["/w"]));
        assert!(policy.check_entry(b"/w", b"yes").is_ok());
        assert_eq!(
            policy.check_entry(b"/w", b"no").unwrap_err().code,
            "blocked"
        );
        assert_eq!(policy.check_entry(b"/", b"w").unwrap_err().code, "blocked");
    }

    #[test]
    fn a_tree_that_holds_a_denied_path_is_refused() {
        let policy = policy(&["/etc/passwd"], None);
        assert_eq!(policy.check_tree(b"/etc").unwrap_err().code, "blocked");
        assert!(policy.check_tree(b"/etc/apt").is_ok());
    }

    #[test]
    fn a_denied_symlink_denies_what_it_leads_to() {
        let policy = Policy::new(vec![b"/bin".to_vec()], None, |_| Some(b"/usr/bin".to_vec()));
        assert!(policy.denies(b"/usr/bin/sh"));
        assert!(policy.denies(b"/bin/sh"));
    }
}
