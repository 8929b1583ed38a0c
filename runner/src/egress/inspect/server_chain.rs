//! The check of a server's certificates, with a bound on what the search for a path may cost.
//!
//! The TLS library tries every path through the certificates that a server sends, so a few kilobytes
//! of certificates with one subject take it longer than the sandbox lives. A chain that no ordinary
//! server sends is refused before the library sees it.

use super::certificates::subject_of;
use rustls::client::{ServerCertVerified, ServerCertVerifier, WebPkiVerifier};
use rustls::{Certificate, Error, RootCertStore, ServerName};
use std::collections::HashSet;
use std::time::SystemTime;

/// Ordinary servers send two to four certificates.
const MOST_CERTIFICATES: usize = 10;
/// A certificate with a hundred names has 4 KB. Names times name constraints are compared on each path.
const MOST_BYTES: usize = 16 << 10;
/// An authority that another one has signed as well is in some chains twice. Each further certificate with
/// the subject of another one multiplies the paths.
const MOST_ALTERNATIVES: usize = 2;

pub struct BoundedVerifier(WebPkiVerifier);

impl BoundedVerifier {
    pub fn new(roots: RootCertStore) -> BoundedVerifier {
        BoundedVerifier(WebPkiVerifier::new(roots, None))
    }
}

impl ServerCertVerifier for BoundedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &Certificate,
        intermediates: &[Certificate],
        server_name: &ServerName,
        scts: &mut dyn Iterator<Item = &[u8]>,
        ocsp_response: &[u8],
        now: SystemTime,
    ) -> Result<ServerCertVerified, Error> {
        let intermediates = bounded(end_entity, intermediates).map_err(Error::General)?;
        self.0.verify_server_cert(
            end_entity,
            &intermediates,
            server_name,
            scts,
            ocsp_response,
            now,
        )
    }

    fn request_scts(&self) -> bool {
        self.0.request_scts()
    }
}

/// Return the certificates that can be part of a path, each once; an error is why there are too many.
fn bounded(
    end_entity: &Certificate,
    intermediates: &[Certificate],
) -> Result<Vec<Certificate>, String> {
    let number = 1 + intermediates.len();
    if number > MOST_CERTIFICATES {
        return Err(format!(
            "the server sent {} certificates, and at most {} are read",
            number, MOST_CERTIFICATES
        ));
    }
    let size: usize = intermediates.iter().map(|one| one.0.len()).sum();
    let size = size + end_entity.0.len();
    if size > MOST_BYTES {
        return Err(format!(
            "the server sent {} bytes of certificates, and at most {} are read",
            size, MOST_BYTES
        ));
    }
    let mut different: Vec<Certificate> = Vec::new();
    let mut subjects = HashSet::new();
    for one in intermediates {
        // The library reads the subject at the same place, and ignores what has none.
        if let Some(subject) = subject_of(&one.0) {
            if !different.contains(one) {
                subjects.insert(subject);
                different.push(one.clone());
            }
        }
    }
    if different.len() - subjects.len() > MOST_ALTERNATIVES {
        return Err("the server sent too many certificates with the same subject".to_owned());
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::super::certificates::named;
    use super::*;

    fn chain(names: &[&str]) -> Vec<Certificate> {
        let one = |(n, name): (usize, &&str)| Certificate(named(name, n as u8, 200));
        names.iter().enumerate().map(one).collect()
    }

    fn refusal(intermediates: &[Certificate]) -> Option<String> {
        bounded(&Certificate(named("server", 0, 0)), intermediates).err()
    }

    #[test]
    fn ordinary_chains_are_read_whole() {
        for names in [
            &[][..],
            &["a"],
            &["a", "b", "c", "d"],
            &["a", "b", "b", "c"],
            &["a", "a", "b", "b"],
            &["a", "b", "c", "d", "e", "f", "g", "h", "i"],
        ] {
            let sent = chain(names);
            let read = bounded(&Certificate(named("server", 0, 0)), &sent).unwrap();
            assert_eq!(read, sent);
        }
    }

    #[test]
    fn a_repeated_certificate_is_read_once() {
        let one = chain(&["a"]);
        let sent = vec![one[0].clone(); 9];
        let read = bounded(&Certificate(named("server", 0, 0)), &sent).unwrap();
        assert_eq!(read, one);
    }

    #[test]
    fn what_multiplies_the_paths_is_refused() {
        let why = refusal(&chain(&["a"; 10])).unwrap();
        assert_eq!(
            why,
            "the server sent 11 certificates, and at most 10 are read"
        );
        for names in [&["a", "a", "a", "a"][..], &["a", "a", "b", "b", "c", "c"]] {
            assert!(refusal(&chain(names)).unwrap().contains("the same subject"));
        }
        let large = [Certificate(named("a", 1, MOST_BYTES))];
        assert!(refusal(&large)
            .unwrap()
            .contains("bytes of certificates, and at most 16384"));
    }
}
