//! File verbs as another user of the sandbox: the field `user` of a request.
//!
//! Every call of the verb's handler runs with the ids of that user, and the end of it too: what is half
//! made is removed by the user who made it.

use crate::identity::{Identity, OtherUser};
use crate::wire::handler::{Failure, Handler, Out, Stepped};
use crate::wire::request::Fields;
use serde_json::Value;
use std::os::unix::io::RawFd;

/// The kernel's own bound is 65536; a user of an image has a handful.
const MAX_GROUPS: usize = 256;

/// Return the user that a request names: `{uid, groups: [main, others…]}`.
pub fn named(request: &Value) -> Result<Option<OtherUser>, Failure> {
    let user = match Fields(request).get("user") {
        None => return Ok(None),
        Some(user) => Fields(user),
    };
    let wrong = || Failure::invalid("user must be an object with uid and groups");
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let listed = user.get("groups").and_then(Value::as_array);
    let groups: Option<Vec<u32>> = listed.and_then(|groups| groups.iter().map(id).collect());
    match (user.get("uid").and_then(id), groups) {
        (Some(uid), Some(groups)) if (1..=MAX_GROUPS).contains(&groups.len()) => {
            Ok(Some(OtherUser { uid, groups }))
        }
        _ => Err(wrong()),
    }
}

/// Begin a verb as that user.
pub fn open(
    user: OtherUser,
    identity: &Identity,
    begin: impl FnOnce() -> Result<Box<dyn Handler>, Failure>,
) -> Result<Box<dyn Handler>, Failure> {
    let inner = identity.as_other(&user, begin).map_err(|errno| {
        let mut failure =
            Failure::from_errno(errno, format!("cannot become user {} here", user.uid));
        failure.code = "unsupported";
        failure
    })??;
    Ok(Box::new(OtherUsers {
        user,
        identity: identity.clone(),
        inner: Some(inner),
    }))
}

struct OtherUsers {
    user: OtherUser,
    identity: Identity,
    /// None only while it is dropped.
    inner: Option<Box<dyn Handler>>,
}

impl OtherUsers {
    fn call(&mut self, work: impl FnOnce(&mut dyn Handler) -> Stepped) -> Stepped {
        let failed = || Failure::new("internal", "the ids could not be changed");
        let inner = self.inner.as_mut().ok_or_else(failed)?;
        let stepped = self.identity.as_other(&self.user, || work(inner.as_mut()));
        stepped.unwrap_or_else(|_errno| Err(failed()))
    }
}

impl Handler for OtherUsers {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        self.call(|inner| inner.step(out))
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Stepped {
        self.call(|inner| inner.data(bytes, out))
    }

    fn end(&mut self, out: &mut dyn Out) -> Stepped {
        self.call(|inner| inner.end(out))
    }

    fn interest(&self) -> Option<(RawFd, bool, bool)> {
        self.inner.as_ref().and_then(|inner| inner.interest())
    }
}

impl Drop for OtherUsers {
    fn drop(&mut self) {
        let inner = self.inner.take();
        let _gone = self.identity.as_other(&self.user, || drop(inner));
    }
}
