//! Turns: no member keeps another one waiting.

use std::os::fd::AsFd;

use rpma::wait::{Happened, Member, Wait};

use crate::common::prelude::*;
use crate::wait::support::{
    SHORT, empty_wait, gets_message, joined, next, nothing, send, wait_for_one, write,
};
#[cfg(feature = "sim")]
use crate::wait::support::{completes, member_writes};

/// Turns for which an event waits at most, if few members are ready.
const BOUND: usize = 16;

/// Members with completions that never run dry: they post again before each turn.
struct Flood {
    wait: Wait,
    flooders: Vec<Member>,
    turns: Vec<usize>,
}

impl Flood {
    /// Also returns their clients, which must live.
    fn new(wait: Wait, peer: &Peer, count: usize) -> Result<(Self, Vec<Conn>)> {
        let ep = listen(peer)?;
        let mut flood = Self {
            wait,
            flooders: Vec::new(),
            turns: vec![0; count],
        };
        let cfg = ConnCfg::new().set_sq_size(30).clone();
        let mut clients = Vec::new();
        for _ in 0..count {
            let (member, client) = joined(&mut flood.wait, &ep, peer, &cfg)?;
            flood.flooders.push(member);
            clients.push(client);
        }
        for _ in 0..100 {
            assert!(flood.turn()?.is_none());
        }
        Ok((flood, clients))
    }

    /// One call. Returns anything but a completion of a flooder.
    fn turn(&mut self) -> Result<Option<Happened>> {
        for member in &self.flooders {
            let conn = self.wait.conn(*member).ok_or("a member")?;
            while write(conn, 0) {}
        }
        match next(&mut self.wait, &mut [Wc::default()])? {
            Happened::Completions(member, 1) if self.flooders.contains(&member) => {
                let place = self.flooders.iter().position(|of| *of == member);
                self.turns[place.ok_or("a flooder")?] += 1;
                Ok(None)
            }
            happened => Ok(Some(happened)),
        }
    }

    /// The next thing but the flood, within so many calls.
    fn comes_within(&mut self, bound: usize) -> Happened {
        let found = (0..bound).find_map(|_| self.turn().expect("a flooder"));
        found.unwrap_or_else(|| panic!("nothing but the flood in {bound} turns"))
    }
}

/// Waits until an event is there, and does not take it.
fn is_there(fd: impl AsFd) {
    assert!(readable(fd, LIMIT));
}

/// Promise: while the completions of one member never run dry, beside hundreds of idle members, an
/// event of another one, its completions, a request, and a wake-up come within 16 turns each.
#[test]
fn a_flood_keeps_no_other_member_waiting() -> Result {
    let idle = if cfg!(feature = "sim") { 200 } else { 60 };
    let _test = device_test();
    let peer = peer()?;
    let mut wait = Wait::new()?;
    let waker = wait.waker();
    let ep = listen(&peer)?;
    let mut others: Vec<_> = (0..idle)
        .map(|_| joined(&mut wait, &ep, &peer, &ConnCfg::new()))
        .collect::<Result<_, _>>()?;
    let endpoint = wait.add_ep(ep)?;
    let (mut flood, _clients) = Flood::new(wait, &peer, 1)?;

    for _ in 0..5 {
        let (member, client) = others.swap_remove(others.len() / 2);
        gets_message(&flood.wait, (member, &client), 7)?;
        let came = flood.comes_within(BOUND);
        assert!(matches!(came, Happened::Completions(of, 1) if of == member));

        drop(client);
        is_there(flood.wait.conn(member).ok_or("a member")?);
        let came = flood.comes_within(BOUND);
        let closed = ConnEvent::Closed;
        assert!(matches!(came, Happened::Event(of, event) if of == member && event == closed));

        let ep = flood.wait.ep(endpoint).ok_or("a member")?;
        let _client = ask(&peer, ep, &ConnCfg::new())?;
        is_there(ep);
        let came = flood.comes_within(BOUND);
        assert!(matches!(came, Happened::Request(of, _) if of == endpoint));

        waker.wake();
        assert!(matches!(flood.comes_within(BOUND), Happened::Woken));
    }
    Ok(())
}

/// Promise: if more members are ready, an event comes after 8 turns and one round; and each of
/// them has as many turns as the others.
#[test]
fn each_of_many_has_its_turn() -> Result {
    const FLOODERS: usize = 40;
    let _test = device_test();
    let peer = peer()?;
    let (wait, _ep, member, client) = wait_for_one(&peer)?;
    let (mut flood, _clients) = Flood::new(wait, &peer, FLOODERS)?;
    drop(client);
    is_there(flood.wait.conn(member).ok_or("a member")?);
    let came = flood.comes_within(8 + FLOODERS + 1);
    assert!(matches!(came, Happened::Event(of, _) if of == member));

    flood.turns.fill(0);
    for _ in 0..20 * FLOODERS {
        assert!(flood.turn()?.is_none());
    }
    // A member that runs dry for a moment misses a round.
    let (least, most) = (flood.turns.iter().min(), flood.turns.iter().max());
    assert!(most.ok_or("some")? <= &21, "{:?}", flood.turns);
    assert!(least.ok_or("some")? >= &10, "{:?}", flood.turns);
    Ok(())
}

/// Promise: an event of a member waits for one turn of the member's own completions.
#[test]
fn an_event_waits_for_one_turn_of_its_own_completions() -> Result {
    let _test = device_test();
    let (mut flood, mut clients) = Flood::new(Wait::new()?, &peer()?, 1)?;
    let (waker, member) = (flood.wait.waker(), flood.flooders[0]);
    clients.clear();
    is_there(flood.wait.conn(member).ok_or("a member")?);
    // The flood ends with the connection: later completions have failed.
    let mut wcs = [Wc::default()];
    let happened = (0..BOUND).find_map(|_| match next(&mut flood.wait, &mut wcs).expect("waits") {
        Happened::Completions(..) => None,
        happened => Some(happened),
    });
    assert!(matches!(happened, Some(Happened::Event(of, ConnEvent::Closed)) if of == member));
    while let Some(Happened::Completions(..)) = flood.wait.next(&mut wcs, Duration::ZERO)? {}
    waker.wake();
    assert!(matches!(next(&mut flood.wait, &mut wcs)?, Happened::Woken));
    Ok(())
}

/// Promise: `None` means that the limit has passed and no member was ready after it; if the limit
/// is 0 the wait looks.
#[test]
fn none_means_nothing() -> Result {
    let _test = device_test();
    let peer = peer()?;
    nothing(&mut Wait::new()?)?;
    let (mut wait, _ep, member, client) = wait_for_one(&peer)?;
    let mut wcs = [Wc::default(); 4];
    for number in 0..10 {
        let began = Instant::now();
        nothing(&mut wait)?;
        assert!(began.elapsed() >= SHORT);
        gets_message(&wait, (member, &client), number)?;
        let happened = wait.next(&mut wcs, Duration::ZERO)?;
        assert!(matches!(happened, Some(Happened::Completions(of, 1)) if of == member));
        assert_eq!(wcs[0].wr_id(), number);
        assert!(wait.next(&mut wcs, Duration::ZERO)?.is_none());
    }
    assert_says(&wait.next(&mut [], LIMIT).expect_err("refused"), &["room"]);
    Ok(())
}

/// Promise: completions that come while the wait sleeps, polls or arms are all returned.
#[test]
fn no_completion_is_missed() -> Result {
    const WRITES: u64 = 2000;
    let _test = device_test();
    let (mut wait, ep, peer) = empty_wait()?;
    let cfg = ConnCfg::new().set_rcq_size(10).clone();
    let (member, client) = joined(&mut wait, &ep, &peer, &cfg)?;
    let mut wcs = [Wc::default(); 3];
    let (mut posted, mut came, mut received) = (0, 0, 0);
    while came < WRITES {
        let conn = wait.conn(member).ok_or("a member")?;
        // One, or as many as there is room for.
        while posted < WRITES && (posted == came || posted % 7 != 0) && write(conn, posted) {
            posted += 1;
        }
        if posted % 5 == 0 {
            conn.recv(MrSlice::EMPTY, u64::MAX)?;
            send(&client)?;
            received += 1;
        }
        match next(&mut wait, &mut wcs)? {
            Happened::Completions(of, count) if of == member => {
                for wc in &wcs[..count] {
                    match wc.wr_id() {
                        u64::MAX => received -= 1,
                        number => {
                            assert_eq!(number, came, "in order");
                            came += 1;
                        }
                    }
                }
            }
            happened => panic!("{happened:?}"),
        }
        if posted % 7 == 0 && posted < WRITES {
            posted += u64::from(write(wait.conn(member).ok_or("a member")?, posted));
        }
    }
    while received > 0 {
        match next(&mut wait, &mut wcs)? {
            Happened::Completions(_, count) => received -= count,
            happened => panic!("{happened:?}"),
        }
    }
    nothing(&mut wait)
}

/// Promise: the cost of a call depends on the ready members, not on the registered ones.
#[test]
#[cfg(feature = "sim")]
fn a_call_costs_what_is_ready() -> Result {
    let calls = |idle: usize| -> Result<u64> {
        let mut spent = 0;
        leaving(&[], || {
            let peer = peer()?;
            let (mut wait, ep, member, _client) = wait_for_one(&peer)?;
            let _idle: Vec<_> = (0..idle)
                .map(|_| joined(&mut wait, &ep, &peer, &ConnCfg::new()))
                .collect::<Result<_, _>>()?;
            nothing(&mut wait)?;
            let count = || -> u64 { with_fabric(|fabric, _| fabric.calls().values().sum()) };
            member_writes(&wait, member, 1)?;
            is_there(&wait);
            let before = count();
            completes(&mut wait, member)?;
            let more = wait.next(&mut [Wc::default()], Duration::ZERO)?;
            assert!(more.is_none(), "{more:?}");
            spent = count() - before;
            Ok(())
        })?;
        Ok(spent)
    };
    assert_eq!(calls(5)?, calls(150)?);
    Ok(())
}
