//! Connections to the gate that have not sent the token yet: few at a time, and the oldest gives way.
//!
//! Whatever can reach the port can open them. They never take the place of a connection that has sent the
//! token, and one that sends nothing is ended as soon as its place is needed.

use rustix::net::{shutdown, Shutdown};
use std::collections::VecDeque;
use std::os::unix::io::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Newcomers {
    most: usize,
    oldest_first: Mutex<VecDeque<Arc<OwnedFd>>>,
}

/// The place of one connection, until this is dropped.
pub struct Newcomer {
    client: Arc<OwnedFd>,
    among: Arc<Newcomers>,
}

impl Newcomers {
    pub fn new(most: usize) -> Arc<Newcomers> {
        Arc::new(Newcomers {
            most,
            oldest_first: Mutex::default(),
        })
    }

    /// Give a connection a place. If there is none, end the oldest: the thread that serves it notices.
    pub fn admit(self: &Arc<Newcomers>, client: &Arc<OwnedFd>) -> Newcomer {
        let mut waiting = self.waiting();
        if waiting.len() >= self.most {
            if let Some(oldest) = waiting.pop_front() {
                let _gone = shutdown(&oldest, Shutdown::Both);
            }
        }
        waiting.push_back(client.clone());
        Newcomer {
            client: client.clone(),
            among: self.clone(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<OwnedFd>>> {
        let waiting = self.oldest_first.lock();
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut waiting = self.among.waiting();
        waiting.retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    fn connection() -> (Arc<OwnedFd>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        (Arc::new(here.into()), there)
    }

    fn is_open(mut there: &UnixStream) -> bool {
        let end = there.read(&mut [0u8; 1]);
        end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    // promise: P101
    #[test]
    fn the_oldest_gives_way_to_one_too_many() {
        let newcomers = Newcomers::new(2);
        let (clients, others): (Vec<_>, Vec<_>) = (0..3).map(|_| connection()).unzip();
        let places: Vec<_> = clients.iter().map(|one| newcomers.admit(one)).collect();
        let open: Vec<_> = others.iter().map(is_open).collect();
        assert_eq!(open, [false, true, true]);
        drop(places);
        assert!(newcomers.waiting().is_empty());
    }

    #[test]
    fn one_that_has_left_its_place_is_not_ended() {
        let newcomers = Newcomers::new(2);
        let (clients, others): (Vec<_>, Vec<_>) = (0..6).map(|_| connection()).unzip();
        drop(newcomers.admit(&clients[0]));
        let _places: Vec<_> = clients[1..]
            .iter()
            .map(|one| newcomers.admit(one))
            .collect();
        let open: Vec<_> = others.iter().map(is_open).collect();
        assert_eq!(open, [true, false, false, false, true, true]);
    }
}
