//! Fields of a request: missing and null are the same, a wrong type is `invalid`, unknown ones are
//! ignored.

use crate::wire::bytes;
use crate::wire::handler::Failure;
use serde_json::Value;

pub struct Fields<'a>(pub &'a Value);

impl<'a> Fields<'a> {
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool, Failure> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| wrong(name, "true or false")),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(wrong(name, "a non-negative integer")),
            },
        }
    }

    pub fn needed_number(&self, name: &str) -> Result<u64, Failure> {
        self.number(name)?.ok_or_else(|| missing(name))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Failure> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value
                .as_str()
                .map(Some)
                .ok_or_else(|| wrong(name, "a string")),
        }
    }

    pub fn needed_text(&self, name: &str) -> Result<&'a str, Failure> {
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// Return a *Bytes* field; NUL inside is refused.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => byte_string(name, value).map(Some),
        }
    }

    /// Return a short name of the given alphabet.
    pub fn name(&self, field: &str, most: usize, extra: &[u8]) -> Result<&'a str, Failure> {
        let text = self.needed_text(field)?;
        let fine = |c: &u8| c.is_ascii_alphanumeric() || extra.contains(c);
        if text.is_empty() || text.len() > most || !text.as_bytes().iter().all(fine) {
            return Err(Failure::invalid(format!(
                "{field} must be 1 to {most} characters of letters, digits and {}",
                String::from_utf8_lossy(extra)
            )));
        }
        Ok(text)
    }
}

pub fn byte_string(name: &str, value: &Value) -> Result<Vec<u8>, Failure> {
    let bytes = bytes::from_json(value)
        .ok_or_else(|| wrong(name, "a string or an object with the only field b64"))?;
    if bytes::no_nul(&bytes) {
        Ok(bytes)
    } else {
        Err(Failure::invalid(format!("{name} contains a NUL byte")))
    }
}

pub fn missing(name: &str) -> Failure {
    Failure::invalid(format!("{name} is missing"))
}

fn wrong(name: &str, want: &str) -> Failure {
    Failure::invalid(format!("{name} must be {want}"))
}
