//! Failures while several operations are posted together: all of them are posted or no operation
//! is, or the error reports that some may be.

use std::ops::Range;

use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, ends_with, with_failures};

fn writes<'a, const N: usize>(conn: &'a Conn, numbers: [u64; N]) -> Result<Batch<'a, N>> {
    let mut batch = conn.batch();
    for number in numbers {
        batch.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, number)?;
    }
    Ok(batch)
}

/// Promise: a device without room for the first one is `QueueFull`; no operation is sent, and the
/// batch can be posted again.
#[test]
fn a_device_without_room_takes_nothing_of_a_batch() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let mut batch = writes(&pair.client, [1, 2, 3])?;
        let failing = Failing::next("ibv_post_send", Errno::NOMEM)?;
        full(batch.post());
        failing.happened();
        assert_empty(pair.client.get_cq())?;
        batch.post()?;
        for (wc, number) in completions(&pair.client, 3)?.iter().zip(1..) {
            opcode_of(wc, number)?;
        }
        write_nothing(&pair.client, 4)?;
        done(&pair.client, 4)?;
        Ok(())
    })
}

/// Promise: the operations that a device has taken of a batch complete, each with its own number.
/// The error reports that there may be such, and the connection takes no more. Without room, too:
/// it was not the queue as a whole.
#[test]
fn a_batch_that_is_refused_in_the_middle_ends_the_connection() -> Result {
    with_failures(|| {
        for (errno, how, taken) in [
            (Errno::INVAL, How::LastRefused, 2),
            (Errno::NOMEM, How::LastRefused, 2),
            // The library's error for 0 and a request that was refused.
            (Errno::IO, How::LastDropped, 2),
            (Errno::INVAL, How::Refused, 0),
            (Errno::IO, How::Done, 3),
        ] {
            let Pair { client, server } = Pair::new(&peer()?)?;
            write_nothing(&client, 0)?;
            let mut batch = writes(&client, [1, 2, 3])?;
            let text = Failing::nth(1, "ibv_post_send", errno, how)?.text(batch.post());
            let middle = matches!(how, How::LastRefused | How::LastDropped);
            let told = text.contains("A later request was refused");
            assert_eq!(told, middle, "{text}");
            ends_with(
                ("ibv_post_send", errno),
                client,
                &server,
                middle,
                (1 + taken, 0),
            )?;
        }
        Ok(())
    })
}

/// Promise, as above, where a gather and a native flush take two doorbells; and where all go by
/// one stream.
#[test]
fn a_batch_of_two_doorbells_of_which_the_second_fails() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let usage = MrUsage::WRITE_DST | MrUsage::WRITE_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let memory = region(&peer, 64, usage | MrUsage::READ_SRC)?;
        let far = remote(&memory).slice(0..16)?;
        let parts = [0, 16].map(|at| memory.slice(at..at + 8).expect("inside"));
        let cfg = ConnCfg::new().set_max_send_sge(2)?.clone();
        for (errno, how, taken) in [
            (Errno::NOMEM, How::Refused, 1),
            (Errno::NOMEM, How::Done, 2),
        ] {
            let Pair { client, server } = Pair::with(&peer, &cfg, &ConnCfg::new())?;
            if !client.has_native_flush() {
                return Ok(());
            }
            let mut batch = client.batch::<4>();
            batch.write_gather(far, &parts, ALWAYS, 0)?;
            batch.flush(far, FlushType::Visibility, ALWAYS, 1)?;
            let text = Failing::nth(1, "ibv_wr_complete", errno, how)?.text(batch.post());
            assert!(text.contains("some of the requests"), "{text}");
            ends_with(
                ("ibv_wr_complete", errno),
                client,
                &server,
                true,
                (taken, 0),
            )?;

            // One stream: no request, or all of it.
            let Pair { client, server } = Pair::with(&peer, &cfg, &ConnCfg::new())?;
            let mut batch = client.batch::<4>();
            for number in 0..3 {
                batch.flush(far, FlushType::Visibility, ALWAYS, number)?;
            }
            Failing::nth(1, "ibv_wr_complete", errno, how)?.told(batch.post());
            let taken = if how.happens() { 3 } else { 0 };
            ends_with(
                ("ibv_wr_complete", errno),
                client,
                &server,
                false,
                (taken, 0),
            )?;
        }
        Ok(())
    })
}

/// Receives of no bytes with these numbers.
fn receives(numbers: Range<u64>) -> Vec<(MrSlice<'static>, u64)> {
    numbers.map(|number| (MrSlice::EMPTY, number)).collect()
}

/// Promise: a device has all of many receives, or no receive if the first has no room. If it
/// refuses a later one the error names that, and the connection ends: the receives before it
/// complete as flushed, with their own numbers.
#[test]
fn many_receives_that_are_refused_in_the_middle() -> Result {
    with_failures(|| {
        for (nth, how, text, taken) in [
            (1, How::Refused, "", 0),
            (1, How::LastRefused, "A later request was refused", 15),
            // The second chain of 16.
            (2, How::Refused, "or its call failed", 16),
        ] {
            let (mut few, mut many) = (ConnCfg::new(), ConnCfg::new());
            let (few, many) = (few.set_sq_size(1), many.set_rq_size(40));
            let Pair { client, server } = Pair::with(&peer()?, few, many)?;
            let failing = Failing::nth(nth, "ibv_post_recv", Errno::NOMEM, how)?;
            let posted = server.recv_many(&receives(10..30));
            if taken == 0 {
                full(posted);
                failing.happened();
                server.recv_many(&receives(0..40))?;
                continue;
            }
            let said = failing.text(posted);
            assert!(said.contains(text), "{said}");
            ends_with(
                ("ibv_post_recv", Errno::NOMEM),
                server,
                &client,
                false,
                (0, taken),
            )?;
        }
        Ok(())
    })
}

/// Promise, as above, for a shared queue: the slots of those that it does not have do not come
/// back.
#[test]
fn many_shared_receives_that_are_refused_in_the_middle() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let srq = Srq::new(&peer, SrqCfg::new().set_rq_size(10))?;
        let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_srq(Some(&srq)))?;
        let said = Failing::nth(1, "ibv_post_srq_recv", Errno::NOMEM, How::LastRefused)?
            .text(srq.recv_many(&receives(0..4)));
        assert!(said.contains("A later request was refused"), "{said}");
        srq.recv_many(&receives(0..4))?;
        let rcq = srq.get_rcq().ok_or("its own")?;
        for expected in [0, 1, 2, 0, 1, 2, 3] {
            send_nothing(&pair.client)?;
            assert_eq!(opcode_of(&next_completion(rcq)?, expected)?, WcOpcode::RECV);
        }
        srq.recv_many(&receives(0..9))?;
        full(srq.recv(MrSlice::EMPTY, 1));
        Ok(())
    })
}
