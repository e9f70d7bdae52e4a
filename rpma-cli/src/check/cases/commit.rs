//! Commits by each method, with a `Writer`. The server has a `Responder`.

use std::iter;

use rpma::FlushType;
use rpma::FlushType::{Persistent, Visibility};
use rpma::commit::Method::{Native, Reading, Server};
use rpma::commit::{Method, Ticket, Writer, WriterCfg};

use super::super::bench::Bench;
use super::Group;
use super::flush::needs_served;
use crate::bytes::pattern;
use crate::client::{InStep, Result, plain};
use crate::wire::{FIRST, Request};

pub(super) const GROUP: Group = Group {
    name: "commit",
    about: "the server's processor sees the parts and the pointer of each commit",
    cases: &[
        ("native-visible", |bench| commits(bench, Native, Visibility)),
        ("reading-visible", |bench| {
            commits(bench, Reading, Visibility)
        }),
        ("native-durable", |bench| commits(bench, Native, Persistent)),
        ("reading-durable", |bench| {
            commits(bench, Reading, Persistent)
        }),
        ("server-durable", |bench| commits(bench, Server, Persistent)),
    ],
};

/// One after the other, and then all at once.
const ONE_BY_ONE: usize = 16;
const AT_ONCE: u64 = 8;
/// The two parts of each commit.
const PARTS: [(u64, usize); 2] = [(0, 100), (128, 61)];
const PLACE: u64 = 256;
/// The pointer is before the places.
const POINTER: u64 = FIRST;
const PLACES: u64 = FIRST + 64;

fn commits(bench: &mut Bench, method: Method, flush_type: FlushType) -> Result<String> {
    needs_served(bench, method, flush_type)?;
    bench.tell(&Request::Zero { word: POINTER })?;
    let mut writer = writer(bench, method, flush_type)?;
    let mut first = 1;
    for count in iter::repeat_n(1, ONE_BY_ONE).chain([AT_ONCE]) {
        let last = first + count - 1;
        let tickets: Result<Vec<_>> = (first..=last)
            .map(|number| commit(bench, &mut writer, number))
            .collect();
        if let Some(ticket) = tickets?.pop() {
            is_there(bench, &mut writer, ticket, last).step(|| format!("commit {last}"))?;
        }
        for number in first..=last {
            parts_are_there(bench, number).step(|| format!("commit {number}"))?;
        }
        first = last + 1;
    }
    Ok(format!("{} commits of {} parts", first - 1, PARTS.len()))
}

fn writer(bench: &mut Bench, method: Method, flush_type: FlushType) -> Result<Writer> {
    let mut cfg = WriterCfg::new(method);
    cfg.set_flush_type(flush_type)?
        .set_in_flight(AT_ONCE as u16)?;
    let number = bench.next_line();
    let base = bench.announce(number, plain(0, method != Native))?;
    let peer = bench.peer.clone();
    bench.writer(&peer, &cfg, &base, number)
}

/// Posts a commit, whose pointer is its number. An earlier commit can be durable some time before
/// its place is free.
fn commit(bench: &Bench, writer: &mut Writer, number: u64) -> Result<Ticket> {
    bench
        .clock
        .within(|limit| writer.wait_room(limit, |_| {}))?;
    let place = PLACES + (number - 1) * PLACE;
    let mut parts = Vec::new();
    for (seed, (offset, len)) in seeds(number).zip(PARTS) {
        let at = place + offset;
        bench.put(at as usize, seed, len)?;
        parts.push((bench.remote(at, len)?, bench.own(at as usize, len)?));
    }
    let pointer = bench.remote(POINTER, 8)?;
    Ok(writer.commit(&parts, Some((pointer, number.to_le_bytes())))?)
}

/// The seeds of its parts.
fn seeds(number: u64) -> impl Iterator<Item = u64> {
    [2 * number, 2 * number + 1].into_iter()
}

/// Waits for a commit. The server's processor sees its pointer afterwards.
fn is_there(bench: &mut Bench, writer: &mut Writer, ticket: Ticket, number: u64) -> Result {
    bench
        .clock
        .within(|limit| writer.wait(ticket, limit, |_| {}))?;
    let pointer = bench.compare(POINTER, &number.to_le_bytes());
    pointer.step(|| "it is acknowledged, and its pointer is not there".to_owned())
}

fn parts_are_there(bench: &mut Bench, number: u64) -> Result {
    let place = PLACES + (number - 1) * PLACE;
    for (seed, (offset, len)) in seeds(number).zip(PARTS) {
        let part = bench.compare(place + offset, &pattern(seed, len));
        part.step(|| "it is acknowledged, and its bytes are not there".to_owned())?;
    }
    Ok(())
}
