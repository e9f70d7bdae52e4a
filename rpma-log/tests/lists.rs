//! A model of the change of a log's list of servers, explored exhaustively: three servers, two
//! copies, and one or two changes.
//!
//! Each step towards a server may come at any time or never, and the next writer may open the log
//! after each step: so a crash and a server that is away are orders of steps. In each state another
//! writer opens the log from each set of servers, and must find each acknowledged record. [`Mutant`]
//! takes one step or one assumption out, and the explorer finds an acknowledged record that is lost.
//!
//! A writer ends when the next one opens the log. What it still does to other servers than those that
//! the next one has read, it may as well do before: so no order is missed, unless there is no cut-off.
//!
//! The model assumes of a server that a list is written as a whole or not at all (two places with
//! checksums), that a tail is one word, that what was written stays, and that a server which a new
//! writer has read takes nothing from an older one (the cut-off). Servers that lose their memory are
//! not in the model: they have no header, and count for nothing.

use std::collections::HashSet;

/// Copies that make a record acknowledged, and servers that a new writer reads: K and N - K + 1.
const COPIES: u32 = 2;
const READ: u32 = 2;

/// Servers, as bits.
type Servers = u8;
const A: Servers = 1;
const B: Servers = 2;
const C: Servers = 4;
const D: Servers = 8;
const E: Servers = 16;
const ALL: usize = 5;

fn each(servers: Servers) -> impl Iterator<Item = usize> {
    (0..ALL).filter(move |n| servers >> n & 1 == 1)
}

fn count(servers: Servers) -> u32 {
    servers.count_ones()
}

/// The list that a server has. In a change, `new` has the servers after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct List {
    /// The epoch of the writer, and a count of its own. 0: there is no log.
    number: (u8, u8),
    old: Servers,
    new: Servers,
}

impl List {
    /// The servers after the change.
    fn last(self) -> Servers {
        if self.new == 0 { self.old } else { self.new }
    }

    fn all(self) -> Servers {
        self.old | self.new
    }
}

/// Records, the last one in the lowest bits. A record is the epoch of its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Records(u16);

impl Records {
    fn push(self, record: u8) -> Self {
        Self(self.0 << 4 | u16::from(record))
    }

    fn len(self) -> u8 {
        (0..4).filter(|n| self.0 >> (4 * n) != 0).count() as u8
    }

    fn starts_with(self, first: Self) -> bool {
        self.len() >= first.len() && self.0 >> (4 * (self.len() - first.len())) == first.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    list: List,
    epoch: u8,
    records: Records,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Reading,
    /// It found a change that was cut, and finishes it. Nothing is acknowledged.
    Finishing,
    /// If the list is joint, the servers after the change count.
    Open,
    /// In a change, while nothing is committed.
    Gated,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Writer {
    phase: Phase,
    list: List,
    records: Records,
    /// Servers that have the list, and servers that take commits.
    told: Servers,
    members: Servers,
    /// The records that each server has durably, as far as the writer knows.
    durable: [u8; ALL],
    /// Commits before the last change are counted on the servers before it: so many records.
    before: (Servers, u8),
    appends: u8,
    changes: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; ALL],
    /// With the epochs 1 and 2.
    writers: [Writer; 2],
    acknowledged: Records,
}

/// Each set of servers that have a log.
fn sets(state: &State) -> impl Iterator<Item = Servers> {
    let blank = |n: &usize| state.servers[*n].list.old == 0;
    let blank = (0..ALL).filter(blank).fold(0, |all, n| all | 1 << n);
    (0..1 << ALL).filter(move |read| read & blank == 0)
}

/// What is taken out of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    Nothing,
    /// The new list counts before K servers of the old one have the joint list.
    NoJoint,
    /// A reader of a joint list asks the old servers only.
    ReadsOld,
    /// A reader of a joint list asks the new servers only.
    ReadsNew,
    /// A new writer believes its configuration, and not the lists of the servers.
    IgnoresLists,
    /// The new server counts before it has all records.
    Incomplete,
    /// The old server still counts after the change.
    KeepsOld,
    /// A new writer counts under the new list of a change that it found, before K servers of the old
    /// one have the joint list.
    FinishesEarly,
    /// The new list is written alone before K of its servers have all records.
    SettlesEarly,
    /// Numbers are counts, without the epoch.
    NumbersTwice,
    /// An old writer is not cut off.
    NoCutOff,
}

/// Takes the next state.
type Push<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;

/// The first servers, and the changes that each of two writers makes: a server, and the one that
/// takes its place. Without a server, the place was empty: no server has been reached there.
type Plan = (Servers, [&'static [(Servers, Servers)]; 2]);

struct Model {
    mutant: Mutant,
    first: Servers,
    changes: [&'static [(Servers, Servers)]; 2],
}

impl Model {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    fn of((first, changes): Plan, mutant: Mutant) -> Self {
        Self {
            mutant,
            first,
            changes,
        }
    }

    fn first(&self) -> State {
        let mut state = State::default();
        let list = List {
            number: (1, 0),
            old: self.first,
            new: 0,
        };
        for n in each(self.first) {
            state.servers[n] = Server {
                list,
                epoch: 1,
                records: Records::default(),
            };
        }
        state.writers[0] = Writer {
            phase: Phase::Open,
            list,
            told: list.old,
            members: list.old,
            ..Writer::default()
        };
        state
    }

    fn number(&self, epoch: u8, last: List) -> (u8, u8) {
        let (of, count) = last.number;
        match self.mutant {
            Mutant::NumbersTwice => (0, count + 1),
            _ if of == epoch => (epoch, count + 1),
            _ => (epoch, 0),
        }
    }

    /// The list and the records with which a writer opens the log from these servers.
    fn opens(&self, state: &State, read: Servers) -> Option<(List, Records)> {
        let with_log = each(read).filter(|n| state.servers[*n].list.old != 0);
        let with_log = with_log.fold(0, |all, n| all | 1 << n);
        let lists = each(with_log).map(|n| state.servers[n].list);
        let mut list = lists.max_by_key(|list| list.number)?;
        if self.is(Mutant::IgnoresLists) {
            (list.old, list.new) = (self.first, 0);
        }
        let has = |servers: Servers| count(with_log & servers) >= READ;
        let (old, last) = (has(list.old), has(list.last()));
        let is_enough = match self.mutant {
            Mutant::ReadsOld => old,
            Mutant::ReadsNew => last,
            _ => old && last,
        };
        let found = each(with_log & list.all()).map(|n| state.servers[n]);
        let newest = found.max_by_key(|of| (of.epoch, of.records.len()))?;
        is_enough.then_some((list, newest.records))
    }

    /// All states after one step.
    fn steps(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        for w in 0..2 {
            let is_old = state.writers[w + 1..]
                .iter()
                .any(|of| of.phase != Phase::Reading);
            match state.writers[w].phase {
                Phase::Reading if is_old => {}
                Phase::Reading => self.open(state, w, &mut next),
                _ => self.write(state, w, &mut next),
            }
        }
        next
    }

    /// A writer reads some servers. That they are read in one step takes no order away: what an older
    /// writer does elsewhere meanwhile, it may as well do before.
    fn open(&self, state: &State, w: usize, next: &mut Vec<State>) {
        let epoch = w as u8 + 1;
        for read in sets(state) {
            let Some((list, records)) = self.opens(state, read) else {
                continue;
            };
            let mut state = *state;
            if !self.is(Mutant::NoCutOff) {
                state.writers[..w].fill(Writer::default());
            }
            let number = self.number(epoch, list);
            state.writers[w] = Writer {
                phase: match list.new {
                    0 => Phase::Open,
                    _ => Phase::Finishing,
                },
                list: List { number, ..list },
                records,
                ..Writer::default()
            };
            next.push(state);
        }
    }

    fn write(&self, state: &State, w: usize, next: &mut Vec<State>) {
        let (epoch, writer) = (w as u8 + 1, state.writers[w]);
        let mut push = |change: &dyn Fn(&mut State)| {
            let mut state = *state;
            change(&mut state);
            next.push(state);
        };
        // A server gets the list: when it joins, in a change, and after it.
        let gets = match writer.phase {
            Phase::Gated => writer.members,
            _ => writer.list.all(),
        };
        for n in each(gets & !writer.told) {
            push(&|state| {
                state.servers[n].list = writer.list;
                state.writers[w].told |= 1 << n;
                let joins = match writer.phase {
                    Phase::Gated => 0,
                    Phase::Finishing => writer.list.all(),
                    _ => writer.list.last(),
                };
                state.writers[w].members |= joins & 1 << n;
            });
        }
        match writer.phase {
            Phase::Reading => {}
            Phase::Finishing => {
                let is_joint = count(writer.told & writer.list.old) >= COPIES;
                if is_joint || self.is(Mutant::FinishesEarly) {
                    push(&|state| self.switch(&mut state.writers[w]));
                }
            }
            Phase::Open if writer.list.new != 0 && self.may_settle(&writer) => push(&|state| {
                let writer = &mut state.writers[w];
                let (number, old) = (self.number(epoch, writer.list), writer.list.new);
                writer.list = List {
                    number,
                    old,
                    new: 0,
                };
                (writer.told, writer.before) = (0, (0, 0));
                for n in each(!old & 0x1F) {
                    writer.durable[n] = 0;
                }
            }),
            Phase::Open => {}
            Phase::Gated => {
                let is_joint = count(writer.told & writer.list.old) >= COPIES;
                if is_joint || self.is(Mutant::NoJoint) {
                    push(&|state| self.switch(&mut state.writers[w]));
                }
                // It gives up: the list before the change has a new number.
                let is_joint = writer.list.new != 0;
                is_joint.then(|| {
                    push(&|state| {
                        let writer = &mut state.writers[w];
                        writer.list.number = self.number(epoch, writer.list);
                        (writer.list.new, writer.told) = (0, 0);
                        writer.phase = Phase::Open;
                    })
                });
            }
        }
        if writer.phase == Phase::Open {
            self.commit(state, w, &mut push);
        }
    }

    /// K servers of the new list have all records that may be acknowledged.
    fn may_settle(&self, writer: &Writer) -> bool {
        let is_there = Self::copies(writer, writer.list.new, writer.before.1);
        is_there || self.is(Mutant::SettlesEarly)
    }

    /// Whether K of these servers have so many records.
    fn copies(writer: &Writer, servers: Servers, len: u8) -> bool {
        let durable = each(servers).filter(|n| writer.durable[*n] > len);
        durable.count() as u32 >= COPIES
    }

    fn commit(&self, state: &State, w: usize, push: &mut Push<'_>) {
        let (epoch, writer) = (w as u8 + 1, state.writers[w]);
        let len = writer.records.len();
        for n in each(writer.members) {
            let has = state.servers[n];
            if (has.epoch, has.records) != (epoch, writer.records) {
                push(&|state| {
                    state.servers[n].epoch = epoch;
                    state.servers[n].records = writer.records;
                    state.writers[w].durable[n] = len + 1;
                });
            }
        }
        if writer.appends == 0 {
            push(&|state| {
                let writer = &mut state.writers[w];
                writer.records = writer.records.push(epoch);
                writer.appends += 1;
            });
        }
        let has_list = writer.list.new == 0 && count(writer.told & writer.list.old) >= COPIES;
        let is_first = writer.changes == 0 && writer.list.new == 0;
        if let Some((old, new)) = self.changes[w].get(usize::from(writer.changes)).copied() {
            let n = new.trailing_zeros() as usize;
            let may = is_first || has_list;
            if may && writer.list.last() & old == old {
                push(&|state| self.begin(state, w, (old, n)));
            }
        }
    }

    /// The new server gets all records, and is the first one with the joint list.
    fn begin(&self, state: &mut State, w: usize, (old, n): (Servers, usize)) {
        let epoch = w as u8 + 1;
        let writer = &mut state.writers[w];
        writer.list.number = self.number(epoch, writer.list);
        (writer.list.old, writer.list.new) = (writer.list.last(), 0);
        match old {
            // Any K servers of the list before are among those of this one.
            0 => writer.list.old |= 1 << n,
            _ => writer.list.new = writer.list.old & !old | 1 << n,
        }
        (writer.phase, writer.told) = (Phase::Gated, 1 << n);
        writer.changes += 1;
        let records = match self.mutant {
            Mutant::Incomplete => Records::default(),
            _ => writer.records,
        };
        state.servers[n] = Server {
            list: writer.list,
            epoch,
            records,
        };
    }

    /// From now on the new list counts. Commits in flight count on the servers before it as well.
    fn switch(&self, writer: &mut Writer) {
        let (List { old, .. }, new) = (writer.list, writer.list.last());
        let len = writer.records.len();
        writer.before = (0, len);
        if writer.phase == Phase::Gated {
            writer.before.0 = old;
            // The new server has all of them.
            let added = new & !writer.members & writer.told;
            each(added).for_each(|n| writer.durable[n] = len + 1);
            writer.members |= added;
        }
        if !self.is(Mutant::KeepsOld) {
            writer.members &= new;
        }
        writer.phase = Phase::Open;
    }

    /// The records that a writer has acknowledged, or may acknowledge.
    fn acknowledged(&self, writer: &Writer) -> Records {
        let counts = match writer.phase {
            Phase::Reading | Phase::Finishing => return Records::default(),
            Phase::Gated => writer.list.old,
            Phase::Open if self.is(Mutant::KeepsOld) => writer.list.last() | writer.before.0,
            Phase::Open => writer.list.last(),
        };
        let (len, (before, all)) = (writer.records.len(), writer.before);
        let is_there = |len: &u8| {
            let is_before = *len <= all && Self::copies(writer, before, *len);
            is_before || Self::copies(writer, counts, *len)
        };
        let most = (0..=len).rev().find(is_there).unwrap_or(0);
        Records(writer.records.0 >> (4 * (len - most)))
    }

    /// Acknowledges what can be. Fails if two records are acknowledged at one position.
    fn acknowledge(&self, state: &mut State) -> Result<(), String> {
        for writer in &state.writers {
            let acknowledged = self.acknowledged(writer);
            let before = state.acknowledged;
            if acknowledged.starts_with(before) {
                state.acknowledged = acknowledged;
            } else if !before.starts_with(acknowledged) {
                return Err("two records are acknowledged at one position".to_owned());
            }
        }
        Ok(())
    }

    /// Fails if the writer, or one that opens the log now, has lost an acknowledged record.
    fn judge(&self, state: &State) -> Result<(), String> {
        let has_all = |records: Records| records.starts_with(state.acknowledged);
        let [_, second] = state.writers;
        if second.phase != Phase::Reading && !has_all(second.records) {
            return Err("the second writer has lost a record".to_owned());
        }
        for read in sets(state) {
            match self.opens(state, read) {
                Some((list, records)) if !has_all(records) => {
                    return Err(format!("{read:05b} open without a record: {list:?}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Explores all states. Returns their number, or a state in which a record is lost.
    fn explore(&self) -> Result<usize, String> {
        let first = self.first();
        let (mut seen, mut left) = (HashSet::from([first]), vec![first]);
        while let Some(state) = left.pop() {
            for mut next in self.steps(&state) {
                let acknowledged = self.acknowledge(&mut next);
                if seen.insert(next) {
                    let judged = acknowledged.and_then(|()| self.judge(&next));
                    judged.map_err(|why| format!("{why}\n{next:#?}"))?;
                    left.push(next);
                }
            }
        }
        Ok(seen.len())
    }
}

const ONE: Plan = (A | B | C, [&[(C, D)], &[]]);
/// An empty place is filled, and then its server is replaced.
const FILLED: Plan = (A | B, [&[(0, C), (C, D)], &[]]);
/// Two changes, by one writer, or by two. The second one may not know of the first change.
const TWO: [Plan; 3] = [
    (A | B | C, [&[(C, D), (B, E)], &[]]),
    (A | B | C, [&[(C, D)], &[(B, E)]]),
    (A | B | C, [&[(C, D)], &[(C, E)]]),
];

fn loses_nothing(plans: &[Plan]) {
    for plan in plans {
        let explored = Model::of(*plan, Mutant::Nothing).explore();
        let states = explored.unwrap_or_else(|lost| panic!("{lost}"));
        println!("{plan:?}: {states} states");
        assert!(states > 5_000, "{states}");
    }
}

/// Promise: whatever is cut at whichever step, each set of servers that opens the log has each
/// acknowledged record.
#[test]
fn a_change_loses_nothing() {
    loses_nothing(&[ONE, FILLED]);
}

/// The same for two changes.
#[test]
#[ignore = "long: half a minute"]
fn two_changes_lose_nothing() {
    loses_nothing(&TWO);
}

/// Promise: each step of the change is needed.
#[test]
fn each_step_is_needed() {
    for (mutant, plan) in [
        (Mutant::NoJoint, ONE),
        (Mutant::ReadsOld, ONE),
        (Mutant::ReadsNew, ONE),
        (Mutant::IgnoresLists, ONE),
        (Mutant::Incomplete, ONE),
        (Mutant::KeepsOld, ONE),
        (Mutant::FinishesEarly, ONE),
        (Mutant::SettlesEarly, ONE),
        (Mutant::NumbersTwice, TWO[2]),
        (Mutant::NoCutOff, ONE),
    ] {
        let lost = Model::of(plan, mutant).explore();
        let lost = lost.map(|states| panic!("{mutant:?} is not found in {states} states"));
        println!("{mutant:?}: {}", lost.unwrap_or_else(|lost| lost));
    }
}
