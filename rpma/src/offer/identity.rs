//! [`Identity`]: the name of a client and of its writer.

use crate::error::{Error, Result};
use crate::verbs::random;

/// Names a client to a [`serve::Server`](crate::serve::Server), so that the server recognises it on
/// each new connection.
///
/// * The **key** names the client's memory on the server. The program chooses it.
/// * The **epoch** is a number that the program chooses. A writer with a higher epoch takes over
///   the key, and the server refuses lower ones from then on.
/// * The **instance** is a random number. It distinguishes two writers with the same key and epoch.
///
/// [Serving clients](crate::serve) has the table of the server's decisions. An
/// [`Offer`](crate::Offer) only carries the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the 24 bytes of the encoding")]
pub struct Identity {
    /// Names the client's memory on the server; never 0.
    pub key: u64,
    /// Decides who may write: a higher epoch takes over the key.
    pub epoch: u64,
    /// The random number of one writer, from [`new`](Self::new).
    pub instance: u64,
}

impl Identity {
    /// Makes the identity of a new writer, with this key and epoch. It draws the instance at random
    /// (`getrandom(2)`), so no other writer has the same one, in this process or in another.
    ///
    /// Call it once in the life of a writer, and use the result for all its connections. A process
    /// that is started again is another writer: it needs a higher epoch. Two writers with the same
    /// instance would cut each other off without end.
    ///
    /// On a simulated fabric with a seed, the instance follows from the seed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for the key 0 and for the epoch `u64::MAX`, which no server
    /// accepts. [`Error::Provider`] if `getrandom` fails.
    pub fn new(key: u64, epoch: u64) -> Result<Self> {
        let identity = Self {
            key,
            epoch,
            instance: random()?,
        };
        identity.check().map(|()| identity)
    }

    /// Refuses an identity that no server accepts.
    pub(crate) fn check(&self) -> Result<()> {
        if self.key == 0 {
            return Err(Error::invalid("the key is 0: a key is any other number"));
        }
        if self.epoch == u64::MAX {
            return Err(Error::invalid(
                "the epoch is 2^64-1, above which no writer could take over",
            ));
        }
        Ok(())
    }
}
