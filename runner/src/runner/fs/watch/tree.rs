//! Which inotify watch belongs to which directory, as a tree, so that a moved directory takes its
//! content along. Knows names and numbers only, no descriptors.

use crate::fs::watch::inotify::Wd;
use std::collections::HashMap;

#[derive(Default)]
struct Node {
    parent: Option<Wd>,
    name: Vec<u8>,
    children: HashMap<Vec<u8>, Wd>,
}

#[derive(Default)]
pub struct Tree {
    nodes: HashMap<Wd, Node>,
    root: Wd,
}

impl Tree {
    pub fn new(root: Wd) -> Tree {
        let mut tree = Tree {
            nodes: HashMap::new(),
            root,
        };
        tree.nodes.insert(root, Node::default());
        tree
    }

    pub fn root(&self) -> Wd {
        self.root
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn knows(&self, wd: Wd) -> bool {
        self.nodes.contains_key(&wd)
    }

    pub fn child(&self, parent: Wd, name: &[u8]) -> Option<Wd> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// Return the names from the root to `wd`; `None` if it is not (or no longer) below the root.
    pub fn names(&self, wd: Wd) -> Option<Vec<&[u8]>> {
        let mut names = Vec::new();
        let mut at = wd;
        while at != self.root {
            let node = self.nodes.get(&at)?;
            names.push(node.name.as_slice());
            at = node.parent?;
        }
        names.reverse();
        Some(names)
    }

    /// Put `wd` at `name` in `parent`, wherever it was before. `false` if that would put a directory
    /// into itself (one directory shown twice by a mount), or if `parent` is unknown.
    pub fn put(&mut self, parent: Wd, name: &[u8], wd: Wd) -> bool {
        if !self.knows(parent) || self.is_above(wd, parent) {
            return false;
        }
        self.detach(wd);
        if let Some(old) = self.child(parent, name) {
            self.detach(old);
        }
        let node = self.nodes.entry(wd).or_default();
        node.parent = Some(parent);
        node.name = name.to_vec();
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.insert(name.to_vec(), wd);
        }
        true
    }

    fn is_above(&self, wd: Wd, below: Wd) -> bool {
        let mut at = Some(below);
        while let Some(here) = at {
            if here == wd {
                return true;
            }
            at = self.nodes.get(&here).and_then(|node| node.parent);
        }
        false
    }

    /// Take `wd` out of its parent; its content stays in it.
    pub fn detach(&mut self, wd: Wd) {
        let (parent, name) = match self.nodes.get_mut(&wd) {
            Some(node) => (node.parent.take(), std::mem::take(&mut node.name)),
            None => return,
        };
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            if parent.children.get(&name) == Some(&wd) {
                parent.children.remove(&name);
            }
        }
    }

    /// Forget `wd` and everything in it; return all of them.
    pub fn remove(&mut self, wd: Wd) -> Vec<Wd> {
        self.detach(wd);
        let mut gone = Vec::new();
        let mut todo = vec![wd];
        while let Some(wd) = todo.pop() {
            if let Some(node) = self.nodes.remove(&wd) {
                todo.extend(node.children.values());
                gone.push(wd);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::new(1);
        assert!(tree.put(1, b"a", 2));
        assert!(tree.put(2, b"b", 3));
        assert!(tree.put(1, b"c", 4));
        tree
    }

    fn names(tree: &Tree, wd: Wd) -> Option<String> {
        let names = tree.names(wd)?;
        Some(String::from_utf8(names.join(&b'/')).unwrap())
    }

    #[test]
    fn moved_directory_takes_its_children_along() {
        let mut tree = tree();
        tree.detach(2);
        assert_eq!(names(&tree, 3), None);
        assert!(tree.put(4, b"x", 2));
        assert_eq!(names(&tree, 3).unwrap(), "c/x/b");
        assert_eq!(tree.child(1, b"a"), None);
    }

    #[test]
    fn directory_is_never_put_into_itself() {
        let mut tree = tree();
        assert!(!tree.put(3, b"loop", 2));
        assert!(!tree.put(3, b"loop", 1));
        assert_eq!(names(&tree, 3).unwrap(), "a/b");
    }

    #[test]
    fn removing_returns_the_whole_subtree() {
        let mut tree = tree();
        let mut gone = tree.remove(2);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3]);
        assert_eq!(tree.len(), 2);
    }
}
