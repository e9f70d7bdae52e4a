//! The shared parts of the two GPSPM examples: a client asks the server's program to make bytes
//! durable, the program answers, and the connection ends.
//!
//! The messages are encoded with protobuf, as by librpma's `GPSPM_flush.proto`.
//!
//! # Differences from librpma's
//!
//! * A message must have each of its fields once, in order, and no other field. In C, a field may
//!   come twice, and others may be there.
//! * The server makes durable only ranges in the memory that it offers. librpma's accepts any
//!   range, and can crash.
//! * A client's disconnect counts as its acknowledgement of the response, because the
//!   acknowledgement can be lost with the connection. librpma's server waits for it.
//! * `Translation:` is printed on persistent memory as well, and `At this point, persist function
//!   should be called …` never. (In 09scch it is `persistent function`.)

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use prost::Message;
use rpma::{
    AlignedBuf, Conn, ConnEvent, Mr, MrSlice, MrUsage, Peer, Wc, WcFailure, WcOpcode, WcStatus,
};

use crate::common::conn::{self, Ended};

/// A wish to make bytes durable.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlushRequest {
    /// Where the bytes begin in the memory region.
    #[prost(fixed64, required, tag = "1")]
    pub(crate) offset: u64,
    #[prost(fixed64, required, tag = "2")]
    pub(crate) length: u64,
    /// The context that the response is to carry.
    #[prost(fixed64, required, tag = "3")]
    pub(crate) op_context: u64,
}

/// The answer: the bytes of that request are durable.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlushResponse {
    #[prost(fixed64, required, tag = "1")]
    pub(crate) op_context: u64,
}

impl FlushRequest {
    /// The bytes, counted from the beginning of `data`, the part of its memory region that the
    /// server offers.
    pub(crate) fn range_in(&self, data: Range<u64>) -> Result<Range<usize>> {
        let Self { offset, length, .. } = *self;
        let end = offset.checked_add(length);
        let inside = end.is_some_and(|end| data.start <= offset && offset < end && end <= data.end);
        ensure!(
            inside,
            "the client asks for a flush of {length} bytes at {offset}, and is offered those at \
             {data:?}"
        );
        let start = usize::try_from(offset - data.start)?;
        Ok(start..start + usize::try_from(length)?)
    }
}

/// How long a message can be.
const SIZE: usize = 512;

/// Memory for a message to send, and after it for one to receive.
pub(crate) struct Messages(Mr<AlignedBuf>);

impl Messages {
    pub(crate) fn new(peer: &Peer) -> Result<Self> {
        let usage = MrUsage::SEND | MrUsage::RECV;
        Ok(Self(Mr::reg(peer, AlignedBuf::zeroed(2 * SIZE)?, usage)?))
    }

    /// Encodes a message. Returns the bytes to send.
    pub(crate) fn put(&self, message: &impl Message) -> Result<MrSlice<'_>> {
        let bytes = message.encode_to_vec();
        ensure!(bytes.len() <= SIZE, "the message has no room");
        self.0.write_at(0, &bytes)?;
        Ok(self.0.slice(..bytes.len())?)
    }

    /// Where a message is received.
    pub(crate) fn receive_buffer(&self) -> Result<MrSlice<'_>> {
        Ok(self.0.slice(SIZE..)?)
    }

    /// Decodes a message after its receive has completed.
    pub(crate) fn get<M: Message + Default>(&self, wc: &Wc) -> Result<M> {
        let len = wc.result()?.byte_len();
        let len = len.context("the completion is not one of a receive")?;
        let mut bytes = vec![0; len.try_into()?];
        self.0.read_at(SIZE, &mut bytes)?;
        let message = M::decode(bytes.as_slice())?;
        // To prost, a field that is missing is 0, and one that comes twice has its last value.
        ensure!(
            bytes == message.encode_to_vec(),
            "the message has not each of its fields once, in order, and nothing else"
        );
        Ok(message)
    }
}

/// Waits until the request is sent and its response is here: two completions, in either order. (No
/// rule guarantees that the send completes here before the server's response is here.)
pub(crate) fn sent_and_answered<M: Message + Default>(
    conn: &Conn,
    messages: &Messages,
) -> Result<M> {
    let (mut sent, mut response) = (false, None);
    while !sent || response.is_none() {
        let wc = conn::next_completion(conn)?;
        match wc.result()?.opcode() {
            WcOpcode::SEND => sent = true,
            _ => response = Some(messages.get(&wc)?),
        }
    }
    response.context("no response")
}

/// Ends the connection after the response was sent. `sent` is the result of waiting for its
/// completion.
///
/// The client disconnects when it has the response. The connection can take with it the
/// acknowledgement that the completion waits for, so a disconnect is as good an answer. (A client
/// that is killed just then looks the same. Then it may not have learned that the bytes are
/// durable, but they are.)
pub(crate) fn end_after_response(conn: &Conn, sent: Result<Wc>) -> Result<()> {
    match sent {
        Ok(wc) => {
            let opcode = wc.result()?.opcode();
            ensure!(
                opcode == WcOpcode::SEND,
                "the completion of the send is one of another operation: {opcode}"
            );
            conn::wait_and_disconnect(conn)
        }
        Err(error) if has_left(conn, &error) => {
            log::warn!("the client has disconnected before it acknowledged the response");
            Ok(conn.disconnect()?)
        }
        Err(error) => Err(error),
    }
}

/// Whether the completion did not come because the client has disconnected.
fn has_left(conn: &Conn, error: &Error) -> bool {
    if let Some(Ended(event)) = error.downcast_ref() {
        return *event == ConnEvent::Closed;
    }
    // The device may be the first to give up.
    let failure: Option<&WcFailure> = error.downcast_ref();
    let event = conn.wait_ended(Duration::from_secs(1));
    failure.is_some_and(|failure| failure.status == WcStatus::RETRY_EXC_ERR)
        && matches!(event, Ok(ConnEvent::Closed))
}
