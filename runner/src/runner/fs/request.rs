//! The fields that all fs requests have in common: paths, modes, and the policy around them.

use super::policy::Policy;
use super::resolve::{self, Resolver};
use super::Directories;
use crate::sys;
use crate::wire::handler::Failure;
use crate::wire::request::{byte_string, missing, Fields};
use serde_json::{Map, Value};

pub struct Request<'a> {
    fields: Fields<'a>,
    directories: &'a Directories,
}

impl<'a> Request<'a> {
    pub fn new(body: &'a Value, directories: &'a Directories) -> Request<'a> {
        Request {
            fields: Fields(body),
            directories,
        }
    }

    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        self.fields.bytes(name)
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool, Failure> {
        self.fields.flag(name, default)
    }

    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, Failure> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(Failure::invalid(format!("{name} must be an object"))),
        }
    }

    pub fn path(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let path = self.fields.bytes(name)?.ok_or_else(|| missing(name))?;
        checked_path(name, path)
    }

    pub fn paths(&self, name: &str, most: usize) -> Result<Vec<Vec<u8>>, Failure> {
        match self.fields.get(name) {
            None => Err(missing(name)),
            Some(Value::Array(list)) if list.len() <= most => list
                .iter()
                .map(|value| checked_path(name, byte_string(name, value)?))
                .collect(),
            Some(_) => Err(Failure::invalid(format!(
                "{name} must be a list of at most {most} paths"
            ))),
        }
    }

    /// Return a number of bytes or entries. Offsets are signed in the kernel, so 2⁶³ is out of bounds.
    pub fn count(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.fields.number(name)? {
            Some(count) if count > i64::MAX as u64 => {
                Err(Failure::invalid(format!("{name} is out of bounds")))
            }
            count => Ok(count),
        }
    }

    pub fn mode(&self, name: &str) -> Result<Option<u32>, Failure> {
        match self.fields.number(name)? {
            None => Ok(None),
            Some(mode) if mode <= 0o7777 => Ok(Some(mode as u32)),
            Some(_) => Err(Failure::invalid(format!(
                "{name} is not within 0 and 07777"
            ))),
        }
    }

    /// Return a resolver for a verb that only reads: `deny` applies.
    pub fn reading(&self) -> Result<Resolver, Failure> {
        let deny = self.prefixes("deny")?.unwrap_or_default();
        Ok(self.resolver(deny, None))
    }

    /// Return a resolver for a verb that changes something: `deny` and `within` apply.
    pub fn writing(&self) -> Result<Resolver, Failure> {
        let deny = self.prefixes("deny")?.unwrap_or_default();
        let within = self.prefixes("within")?;
        Ok(self.resolver(deny, within))
    }

    fn resolver(&self, deny: Vec<Vec<u8>>, within: Option<Vec<Vec<u8>>>) -> Resolver {
        let policy = Policy::new(deny, within, resolve::real_prefix);
        Resolver::new(self.directories.workspace.clone(), policy)
    }

    fn prefixes(&self, name: &str) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let list = match self.fields.get(name) {
            None => return Ok(None),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(Failure::invalid(format!("{name} must be a list"))),
        };
        let mut prefixes = Vec::with_capacity(list.len());
        for value in list {
            let prefix = byte_string(name, value)?;
            if prefix.first() != Some(&b'/') {
                return Err(Failure::invalid(format!("{name} must hold absolute paths")));
            }
            prefixes.push(prefix);
        }
        Ok(Some(prefixes))
    }
}

fn checked_path(name: &str, path: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if path.is_empty() {
        return Err(Failure::invalid(format!("{name} is empty")));
    }
    if path.len() >= sys::PATH_MAX {
        return Err(Failure::new(
            "name_too_long",
            format!("{name} has {} bytes, a path at most 4095", path.len()),
        ));
    }
    Ok(path)
}
