//! Admitting: a request is judged, the program answers, and the client gets its connection.
//!
//! The order of [`Server::admit`] is the promise of this module, and everything is checked before
//! anything changes.
//!
//! If the identity were kept first, a cut-off that fails would leave an epoch whose writer was
//! never accepted. If the client were accepted before both, two writers would have one key, or a
//! loss of power would admit the earlier one again.

use std::sync::Arc;

use super::asked::Asked;
use super::directory::Denied;
use super::keys::Part;
use super::told::{Reason, Refused, Served};
use super::{Client, Server};
use crate::clock;
use crate::commit::{Responder, Slots};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::mr::Mr;
use crate::offer::{Identity, Offer};
use crate::peer::Peer;
use crate::plan::Plan;
use crate::pmem::PmemMap;
use crate::refusal::{Refusal, RefusalCode};
use crate::request::{NotMade, Request};
use crate::wait::Place;

/// The text for an [`Asked`] that is no open question of this server.
const NOT_OPEN: &str =
    "the request was refused before the program answered, or comes from another server";

/// A client's offer, its identity, and the one that is kept.
type Judged = (Offer, Identity, Option<Identity>);

/// The reason of a refusal, and its cause on this side.
type Cause = (Refusal, Option<Error>);

/// An admission that was checked.
struct Prepared {
    place: Place,
    plan: Plan,
    answer: Vec<u8>,
}

impl Server {
    /// Judges a request: asks the program, or refuses it.
    pub(super) fn judge(&mut self, request: Request) -> Served {
        match self.judge_offer(request.private_data()) {
            Ok((offer, identity, kept)) => {
                self.withdraw(&identity);
                let limit = clock::now().checked_add(self.cfg.answer_limit);
                let asker = (offer, identity);
                Served::Asks(self.questions.ask(request, asker, kept, limit))
            }
            Err((refusal, identity)) => {
                self.counters.refused += 1;
                Served::Refused(rejected(request, refusal, identity))
            }
        }
    }

    /// A writer that asks again has given its earlier request up. If the program admitted that one
    /// as well, it would cut off the writer's connection for a request that nobody waits for.
    fn withdraw(&mut self, identity: &Identity) {
        let earlier = self.questions.remove_of(identity);
        if let Some((asks, request)) = earlier.and_then(|asks| asks.take().map(|of| (asks, of))) {
            let refusal = Refusal::new(RefusalCode::Full, "the client has asked again");
            let refused = rejected(request, refusal, Some(asks.identity));
            self.counters.refused += 1;
            self.told.push_back(Served::Refused(refused));
        }
    }

    fn judge_offer(&self, private_data: &[u8]) -> Result<Judged, (Refusal, Option<Identity>)> {
        let offer = self.offer.judge(private_data);
        let offer = offer.map_err(|refusal| (refusal, None))?;
        let Some(identity) = offer.identity() else {
            let words = "the offer has no key: Offer::set_identity";
            return Err((Refusal::new(RefusalCode::Broken, words), None));
        };
        let kept = self.judge_identity(&identity);
        let kept = kept.map_err(|refusal| (refusal, Some(identity)))?;
        // The earlier one of the same writer makes room.
        if self.questions.open_beside(&identity) >= self.cfg.most_questions {
            let words = "too many clients ask at the same time";
            let refusal = self.refusal(RefusalCode::Full, identity.key, words);
            return Err((refusal, Some(identity)));
        }
        Ok((offer, identity, kept))
    }

    /// Whether a client of this identity may be admitted now. Returns the one that is kept.
    fn judge_identity(&self, identity: &Identity) -> Result<Option<Identity>, Refusal> {
        let Identity { key, epoch, .. } = *identity;
        let refused = |code, words: &str| Err(self.refusal(code, key, words));
        if let Err(error) = identity.check() {
            return refused(RefusalCode::Broken, &error.to_string());
        }
        let kept = match self.directory.judge(identity) {
            Ok(kept) => kept,
            Err(denied) => {
                let (code, words) = match denied {
                    Denied::OldEpoch { .. } => {
                        let words = format!("the epoch {epoch} is old: {denied}");
                        (RefusalCode::OldEpoch, words)
                    }
                    Denied::Taken { .. } => (RefusalCode::Taken, denied.to_string()),
                    Denied::Full { .. } => (RefusalCode::Full, denied.to_string()),
                    Denied::MayBeLost { .. } => {
                        (RefusalCode::Refused, format!("a new key {denied}"))
                    }
                    Denied::BelowLowest { .. } => {
                        (RefusalCode::OldEpoch, format!("a new key {denied}"))
                    }
                };
                let mut refusal = self.refusal(code, key, &words);
                if let Denied::BelowLowest { lowest } = denied {
                    refusal.set_epoch(lowest.saturating_sub(1));
                }
                return Err(refusal);
            }
        };
        if !self.keys.is_cut_off(key) {
            let words = "the old connection could not be cut off: its writes may still land";
            return refused(RefusalCode::NotCutOff, words);
        }
        let is_replaced = self.keys.client(key).is_some();
        if !is_replaced && self.keys.connected() >= self.cfg.most_clients {
            return refused(
                RefusalCode::Full,
                "the server has no room for another client",
            );
        }
        Ok(kept)
    }

    pub(super) fn refusal(&self, code: RefusalCode, key: u64, words: &str) -> Refusal {
        let mut refusal = Refusal::new(code, words);
        refusal.set_epoch(self.directory.get(key).map_or(0, |kept| kept.epoch));
        refusal
    }

    /// Admits a client: judges it again, checks the part, cuts off the key's old connection, makes
    /// the identity durable, makes the queues, and accepts, in this order.
    ///
    /// The client's memory is all of `region`, which begins and ends at multiples of 64. It is
    /// registered with `peer`, and no other key uses this [`Peer`]. The client gets `data` in the
    /// answer: bytes of the program ([`Offer::data`]).
    ///
    /// The old client's [`Gone`] is returned by [`next`](Self::next). The server keeps `peer` and
    /// `region` until the next admission of the key, or until [`release`](Self::release):
    /// [`region`](Self::region) returns the latter.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the client was refused, and got the reason.
    ///
    /// * [`Refused::error`] is `None` if something has happened since the client asked: another
    ///   client of the key was admitted, the server is full now, or the key's old connection ended
    ///   and could not be cut off. Nothing has changed.
    /// * [`Error::TimedOut`] if the program answers after the limit
    ///   ([`ServerCfg::set_answer_limit`]). The same if the writer has asked again, or if `asked`
    ///   comes from another server. Nothing has changed.
    /// * [`Error::InvalidArgument`] if `region` is not aligned, or overlaps the directory or the
    ///   region of a connected key. The same if it was registered with another [`Peer`], or if
    ///   `peer` is that of another key or device. The same if `data` does not fit into the answer,
    ///   or if the settings are impossible, such as a keep-alive that is too short
    ///   ([`ConnCfg::set_keep_alive`]). Nothing has changed.
    /// * [`Error::NotSupported`] if the region lacks the usage that [`Method::Server`] needs.
    ///   Nothing has changed.
    /// * [`Error::NotSupported`] also if the old connection could not be cut off
    ///   ([`Gone::not_cut_off`]): its writes may still land. The key is then refused until its
    ///   region is deregistered ([`release`](Self::release)).
    /// * [`Error::Provider`] if a verb failed, or the write-back of the directory. The old
    ///   connection may be cut off, and the identity kept: the client may try again. If the new
    ///   queue pair could not be destroyed after that, the key is refused until
    ///   [`release`](Self::release) as well.
    ///
    /// [`ConnCfg::set_keep_alive`]: crate::ConnCfg::set_keep_alive
    /// [`Gone`]: super::Gone
    /// [`Gone::not_cut_off`]: super::Gone::not_cut_off
    /// [`ServerCfg::set_answer_limit`]: super::ServerCfg::set_answer_limit
    pub fn admit(
        &mut self,
        asked: Asked,
        peer: &Peer,
        region: &Arc<Mr<PmemMap>>,
        data: &[u8],
    ) -> Result<Client, Box<Refused>> {
        let admitted = self.admit_one(&asked, &Part { peer, region, data });
        match &admitted {
            Ok(_) => self.counters.admitted += 1,
            // It was refused and counted before.
            Err((_, Some(Error::TimedOut(_)))) => {}
            Err(_) => self.counters.refused += 1,
        }
        admitted.map_err(|(refusal, error)| asked.refused(refusal, error))
    }

    fn admit_one(&mut self, asked: &Asked, part: &Part<'_>) -> Result<Client, Cause> {
        let identity = asked.identity();
        let key = identity.key;
        let Some(request) = self.questions.take(asked) else {
            let words = "the server did not answer in time, or the client has asked again";
            let refusal = self.refusal(RefusalCode::Full, key, words);
            return Err((refusal, Some(Error::TimedOut(NOT_OPEN))));
        };
        if let Err(refusal) = self.judge_identity(&identity) {
            return Err(reject(request, refusal, None));
        }
        let prepared = match self.prepare(asked, &request, part) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.reject_for(request, key, error)),
        };
        if let Err(error) = request.check_keep_alive(&prepared.plan) {
            return Err(self.reject_for_keep_alive(request, key, error));
        }
        // Nothing has changed so far.
        if let Some(old) = self.keys.client(key) {
            if let Some(gone) = self.end(old, Reason::Replaced) {
                self.told.push_back(Served::Gone(Box::new(gone)));
                self.keep_readable();
            }
            if let Err(refusal) = self.judge_identity(&identity) {
                let error = Error::not_supported(
                    "the key's old connection could not be cut off (see its Gone): deregister its \
                     region with Server::release",
                );
                return Err(reject(request, refusal, Some(error)));
            }
        }
        if let Err(error) = self.directory.keep(identity) {
            return Err(self.reject_for(request, key, error));
        }
        self.accept(asked, request, part, prepared)
    }

    /// All checks of an admission.
    fn prepare(&mut self, asked: &Asked, request: &Request, part: &Part<'_>) -> Result<Prepared> {
        let (peer, region) = (part.peer, part.region);
        request.check_device(peer)?;
        let key = asked.identity().key;
        self.keys.check(key, part, self.directory.addresses())?;
        let mut offer = self.offer.clone();
        offer.add_region(region).set_data(part.data);
        let answer = offer.encode(Offer::ACCEPT)?;
        let place = self.wait.place();
        let cfg = place.cfg(peer, &self.cfg.conn)?;
        let cfg = match self.responder_of(asked) {
            Some(responder) => {
                Slots::check(region)?;
                responder.conn_cfg(&cfg)?
            }
            None => cfg,
        };
        let plan = Plan::new(peer, &cfg)?;
        Ok(Prepared {
            place,
            plan,
            answer,
        })
    }

    /// The responder, if this client commits by the server's method.
    fn responder_of(&self, asked: &Asked) -> Option<&Responder<Client>> {
        let is_served = matches!(asked.offer().method(), Some((Method::Server, _)));
        self.responder.as_ref().filter(|_| is_served)
    }

    /// Makes the queues, and accepts.
    fn accept(
        &mut self,
        asked: &Asked,
        request: Request,
        part: &Part<'_>,
        prepared: Prepared,
    ) -> Result<Client, Cause> {
        let key = asked.identity().key;
        let Prepared {
            place,
            plan,
            answer,
        } = prepared;
        let words = |error: &Error| self.refusal_for(key, error).encode();
        let req = match request.prepare(&plan, words) {
            Ok(req) => req,
            Err(NotMade::Failed(error) | NotMade::Gone(error)) => {
                return Err(self.cause(key, error));
            }
        };
        let responder = self.responder_of(asked);
        let slots = responder.map(|responder| responder.prepare(&req, part.region, ..));
        let slots = match slots.transpose() {
            Ok(slots) => slots,
            Err(error) => {
                let cause = self.cause(key, error);
                if let Err(error) = req.reject(&cause.0.encode()) {
                    log::info!("a client gave up before it was rejected: {error}");
                }
                return Err(cause);
            }
        };
        let conn = match req.accept(&answer) {
            Ok(conn) => conn,
            Err(not_accepted) => {
                // The client may have the answer.
                if !not_accepted.is_destroyed {
                    self.keys.lost(key, part);
                }
                return Err(self.cause(key, not_accepted.error));
            }
        };
        let member = match self.wait.add(place, conn) {
            Ok(member) => member,
            Err(not_added) => {
                if let Err(error) = not_added.object.cut_off() {
                    log::error!("a client of the key {key:#x} is not cut off: {error}");
                    self.keys.lost(key, part);
                }
                return Err(self.cause(key, not_added.error));
            }
        };
        let client = Client(member);
        if let (Some(responder), Some(slots)) = (&mut self.responder, slots) {
            responder.add(client, slots);
        }
        let by = clock::now().checked_add(self.cfg.establish_limit);
        self.establishing.extend(by.map(|by| (by, client)));
        self.keys.connect(key, part, (client, by));
        Ok(client)
    }

    /// Refuses a client: [`RefusalCode::Refused`], with these words.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if the server has already refused the request, because the limit for
    /// answers had passed. The same if the writer has asked again, or if `asked` comes from another
    /// server. [`Error::Provider`] if `rdma_reject` fails (`EINVAL`: the client is gone) or
    /// `rdma_destroy_id`.
    pub fn refuse(&mut self, asked: Asked, words: &str) -> Result<()> {
        let Some(request) = self.questions.take(&asked) else {
            return Err(Error::TimedOut(NOT_OPEN));
        };
        self.counters.refused += 1;
        let refusal = self.refusal(RefusalCode::Refused, asked.identity().key, words);
        request.reject(&refusal.encode())
    }

    fn reject_for(&self, request: Request, key: u64, error: Error) -> Cause {
        reject(request, self.refusal_for(key, &error), Some(error))
    }

    /// The error names numbers and settings of this side, which are too long for the client.
    fn reject_for_keep_alive(&self, request: Request, key: u64, error: Error) -> Cause {
        let refusal = match error {
            Error::InvalidArgument(_) => {
                let words = "the server's keep-alive is below four acknowledgement time-outs: its \
                             program has to raise it (ServerCfg::set_conn)";
                self.refusal(RefusalCode::Refused, key, words)
            }
            _ => self.refusal_for(key, &error),
        };
        reject(request, refusal, Some(error))
    }

    fn cause(&self, key: u64, error: Error) -> Cause {
        (self.refusal_for(key, &error), Some(error))
    }

    /// A verb that failed may succeed later. An argument stays wrong.
    fn refusal_for(&self, key: u64, error: &Error) -> Refusal {
        let code = match error {
            Error::Provider { .. } => RefusalCode::Full,
            _ => RefusalCode::Refused,
        };
        self.refusal(code, key, &error.to_string())
    }
}

fn reject(request: Request, refusal: Refusal, error: Option<Error>) -> Cause {
    if let Err(error) = request.reject(&refusal.encode()) {
        log::info!("a client gave up before it was rejected: {error}");
    }
    (refusal, error)
}

pub(super) fn rejected(
    request: Request,
    refusal: Refusal,
    identity: Option<Identity>,
) -> Box<Refused> {
    let peer_addr = request.peer_addr().ok();
    let (refusal, error) = reject(request, refusal, None);
    Box::new(Refused {
        refusal,
        error,
        identity,
        peer_addr,
    })
}
