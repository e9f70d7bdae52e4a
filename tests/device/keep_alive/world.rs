//! A connection of two hosts, and the ways in which a program waits for it.

use rpma::sim::{Entered, now, sleep};
use rpma::wait::{Happened, Member, Place, Wait};

use crate::common::prelude::*;

/// The keep-alive of these tests.
pub(crate) const D: Duration = Duration::from_secs(6);
/// One step of it.
pub(crate) const STEP: Duration = Duration::from_millis(6_000 / 16 * 3);
/// The hosts of the client and of the server.
pub(crate) const SIDES: [usize; 2] = [0, 1];

/// Each side, with each phase.
pub(crate) fn sides_and_phases(phases: u32) -> impl Iterator<Item = (usize, u32)> {
    let sides = SIDES.into_iter();
    sides.flat_map(move |side| (0..phases).map(move |phase| (side, phase)))
}

/// Retries that outlast the keep-alive, on all devices.
pub(crate) fn patient() -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    // 1.07 s: a little less than a quarter of the keep-alive.
    cfg.set_retry_count(7)?.set_ack_timeout(Some(18))?;
    Ok(cfg.set_keep_alive(Some(D))?.clone())
}

/// How a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Wait::next`.
    Wait,
    /// `Conn::next`.
    Next,
    /// A loop of its own, with `Conn::keep_alive`.
    Loop,
    /// `Conn::wait_timeout`.
    Channel,
}

impl Way {
    pub(crate) const ALL: [Self; 4] = [Self::Wait, Self::Next, Self::Loop, Self::Channel];
}

/// The events that a program saw while it waited.
#[derive(Debug, Default)]
pub(crate) struct Saw {
    /// The numbers of the operations, and whether they succeeded.
    pub(crate) completions: Vec<(u64, bool)>,
    /// With how many completions before it.
    pub(crate) event: Option<(ConnEvent, usize)>,
}

/// One end of a connection, at which a program waits.
pub(crate) struct End {
    way: Way,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Wait(Box<Wait>, Member),
    Conn(Box<Conn>),
}

/// Two hosts, with a clock that jumps over waits.
pub(crate) fn jumping() -> World {
    Rig::new().jumping().world()
}

/// Such hosts, and a connection with [`patient`] settings at both ends, which wait in this way. The
/// calling thread is on the host of the end `here`.
pub(crate) fn patient_ends(way: Way, here: usize) -> Result<(World, [End; 2], Entered)> {
    ends_with(way, here, [&patient()?, &patient()?])
}

/// As [`patient_ends`], with these settings.
pub(crate) fn ends_with(
    way: Way,
    here: usize,
    cfgs: [&ConnCfg; 2],
) -> Result<(World, [End; 2], Entered)> {
    let world = jumping();
    let ends = connect(&world, way, cfgs)?;
    let entered = world.hosts[here].enter();
    Ok((world, ends, entered))
}

/// A connection. Its ends wait in this way, with these settings.
pub(crate) fn connect(world: &World, way: Way, cfgs: [&ConnCfg; 2]) -> Result<[End; 2]> {
    let [client, server] = SIDES.map(|side| {
        let _entered = world.hosts[side].enter();
        let mut cfg = cfgs[side].clone();
        if way == Way::Channel {
            cfg.set_compl_channel(ComplChannel::Shared);
        }
        let wait = (way == Way::Wait).then(|| {
            let mut wait = Wait::new().expect("a wait");
            let place = wait.place();
            cfg = place.cfg(&world.peers[side], &cfg).expect("settings");
            (wait, place)
        });
        (cfg, wait)
    });
    let pair = world.connect(&client.0, &server.0)?;
    let end = |side: usize, wait: Option<(Wait, Place)>, conn| -> Result<_> {
        let _entered = world.hosts[side].enter();
        let held = match wait {
            Some((mut wait, place)) => {
                let member = wait.add(place, conn)?;
                Held::Wait(Box::new(wait), member)
            }
            None => Held::Conn(Box::new(conn)),
        };
        Ok(End { way, held })
    };
    Ok([
        end(0, client.1, pair.client)?,
        end(1, server.1, pair.server)?,
    ])
}

impl End {
    pub(crate) fn conn(&self) -> Result<&Conn> {
        match &self.held {
            Held::Wait(wait, member) => Ok(wait.conn(*member).ok_or("a member")?),
            Held::Conn(conn) => Ok(conn),
        }
    }

    pub(crate) fn into_conn(self) -> Result<Conn> {
        match self.held {
            Held::Conn(conn) => Ok(*conn),
            Held::Wait(mut wait, member) => Ok(wait.remove(member).ok_or("a member")?),
        }
    }

    /// Posts an operation of 0 bytes, which the peer's device answers.
    pub(crate) fn ask(&self, flags: Flags, number: u64) -> Result<Posted, Error> {
        ask_nothing(self.conn().expect("a member"), flags, number)
    }

    /// Waits for so long, or until an event comes.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Saw> {
        let (until, mut saw) = (now() + limit, Saw::default());
        while saw.event.is_none() {
            let left = until.saturating_duration_since(now());
            let goes_on = match &mut self.held {
                Held::Wait(wait, member) => saw.in_wait(wait, *member, left)?,
                Held::Conn(conn) => match self.way {
                    Way::Loop => saw.in_loop(conn, until)?,
                    Way::Channel => saw.on_channel(conn, left)?,
                    Way::Next | Way::Wait => saw.next(conn, left),
                },
            };
            if !goes_on {
                break;
            }
        }
        Ok(saw)
    }

    /// Waits for so long, and sees no event.
    pub(crate) fn idle(&mut self, limit: Duration) -> Result {
        let saw = self.wait(limit)?;
        let nothing = saw.event.is_none() && saw.completions.is_empty();
        assert!(nothing, "{saw:?}, {:?}", self.conn()?.failure());
        assert_eq!((self.conn()?.ended(), self.conn()?.failure()), (None, None));
        Ok(())
    }

    /// Waits for the end of the connection, and returns how long it took.
    pub(crate) fn wait_for_the_end(&mut self) -> Result<(Duration, Saw)> {
        let begin = now();
        let saw = self.wait(LIMIT)?;
        let took = now() - begin;
        let (event, _) = saw.event.as_ref().ok_or("it was noticed")?;
        assert_eq!(self.conn()?.ended(), Some(event));
        Ok((took, saw))
    }

    /// Checks that this end reports only that it is over.
    pub(crate) fn says_no_more(&mut self) -> Result {
        match &mut self.held {
            Held::Wait(wait, _) => {
                assert_eq!(wait.deadline(), None);
                let more = wait.next(&mut [Wc::default()], 10 * D)?;
                assert!(more.is_none(), "{more:?}");
            }
            Held::Conn(conn) => {
                let more = conn.next_event_timeout(Duration::ZERO);
                assert!(matches!(more, Err(Error::NoEvent)), "{more:?}");
                for more in [
                    conn.next(&mut [Wc::default()], LIMIT).map(drop),
                    conn.get_cq().wait().map(drop),
                ] {
                    use NotConnected::{Failed, Silent};
                    match more {
                        Err(Error::SharedChannel | Error::NotConnected(Silent | Failed)) => {}
                        more => panic!("{more:?}"),
                    }
                }
                let ended = conn.keep_alive().expect_err("it has ended");
                assert!(matches!(ended, Error::Ended(_)), "{ended}");
            }
        }
        Ok(())
    }
}

impl Saw {
    /// Waits once. `false`: the limit has passed.
    fn in_wait(&mut self, wait: &mut Wait, member: Member, left: Duration) -> Result<bool> {
        let mut wcs = [Wc::default(); 4];
        match wait.next(&mut wcs, left)? {
            Some(Happened::Completions(of, count)) if of == member => self.add(&wcs[..count]),
            Some(Happened::Event(of, event)) if of == member => self.end(event),
            None => return Ok(false),
            other => panic!("{other:?}"),
        }
        Ok(true)
    }

    fn next(&mut self, conn: &Conn, left: Duration) -> bool {
        let mut wcs = [Wc::default(); 4];
        match conn.next(&mut wcs, left) {
            Ok(Next::Completions(count)) => self.add(&wcs[..count]),
            Ok(Next::Event(event)) => self.end(event),
            Err(Error::TimedOut(_)) => return false,
            Err(error) => panic!("{error}"),
        }
        true
    }

    fn in_loop(&mut self, conn: &Conn, until: Instant) -> Result<bool> {
        self.poll(conn)?;
        if let Ok(event) = conn.next_event_timeout(Duration::ZERO) {
            self.end(event);
            return Ok(true);
        }
        match conn.keep_alive() {
            Ok(due) => {
                let due = due.ok_or("it is not over")?.min(until);
                sleep(due.saturating_duration_since(now()));
                Ok(now() < until)
            }
            Err(Error::Ended(event)) => {
                let kept = conn.next_event_timeout(Duration::ZERO)?;
                assert_eq!(kept, *event);
                self.end(kept);
                Ok(true)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn on_channel(&mut self, conn: &Conn, left: Duration) -> Result<bool> {
        self.poll(conn)?;
        match conn.wait_timeout(left) {
            Ok(_) => {}
            Err(Error::NoCompletion) => return Ok(false),
            Err(Error::NotConnected(NotConnected::Silent | NotConnected::Failed)) => {
                self.end(conn.next_event_timeout(Duration::ZERO)?);
            }
            Err(error) => panic!("{error}"),
        }
        Ok(true)
    }

    fn poll(&mut self, conn: &Conn) -> Result {
        let mut wcs = [Wc::default(); 4];
        loop {
            match conn.get_cq().get_wc(&mut wcs)? {
                0 => return Ok(()),
                count => self.add(&wcs[..count]),
            }
        }
    }

    fn add(&mut self, wcs: &[Wc]) {
        let seen = wcs.iter().map(|wc| (wc.wr_id(), wc.result().is_ok()));
        self.completions.extend(seen);
    }

    fn end(&mut self, event: ConnEvent) {
        self.event = Some((event, self.completions.len()));
    }
}

/// The event with which a keep-alive ends a connection.
pub(crate) fn lost() -> ConnEvent {
    ConnEvent::Lost { status: -110 }
}

/// The reason for it.
pub(crate) fn silent() -> Option<Failure> {
    Some(Failure::Silent { keep_alive: D })
}
