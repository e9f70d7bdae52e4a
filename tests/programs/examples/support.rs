//! The two sides of a pair: programs, and those that a test plays itself.

pub(crate) use crate::common::prelude::*;
use crate::common::program::{Ended, Program, free_port};
use crate::examples::runs;

/// The status of a program that has failed, and of one with arguments that cannot be used.
pub(crate) const FAILURE: i32 = 1;
pub(crate) const USAGE: i32 = 255;

pub(crate) fn full(name: &str) -> &'static str {
    runs::find(name).expect("a known example").name
}

/// A server of an example, once it listens.
pub(crate) fn server(name: &str, args: &[&str]) -> (Program, u16) {
    let (addr, port) = (addr(), free_port(&addr()));
    (Program::example_server(full(name), &addr, port, args), port)
}

pub(crate) fn client(name: &str, port: u16, args: &[&str]) -> Program {
    let (addr, port) = (addr(), port.to_string());
    let args = [&["client", &addr, &port], args].concat();
    Program::example(full(name), &args)
}

/// Runs both sides of an example; `args` are the words that follow the address and the port.
pub(crate) fn run(name: &str, server_args: &[&str], client_args: &[&str]) -> (Ended, Ended) {
    let (server, port) = server(name, server_args);
    let client = client(name, port, client_args).finish();
    (server.finish(), client)
}

/// Waits for a program that has to fail without waiting for an event that cannot come.
///
/// No clock can measure that. A wait for a message has no time limit (except 13's, which is over
/// before), and is ended after `common::LIMIT`, with another status. (A wait for an operation of its own
/// gets its failure after some seconds.) The time of a program that does not wait is unknown, under
/// emulation and on a busy machine.
pub(crate) fn fails_at_once(program: Program, what: &str) -> Ended {
    program.finish().failure(FAILURE, what)
}

/// A client that this test plays, before the server has answered.
pub(crate) fn dial(peer: &Peer, port: u16, private_data: &[u8]) -> Conn {
    let req = ConnReq::new(peer, &addr(), port, &ConnCfg::new()).expect("resolves");
    req.connect(private_data).expect("asks")
}

/// Such a client, once it is connected. It has sent no message.
pub(crate) fn connect(peer: &Peer, port: u16) -> Conn {
    let conn = dial(peer, port, &[]);
    let first = event(&conn).expect("an event in time");
    assert_eq!(first, ConnEvent::Established);
    conn
}

/// The connection of a server that this test plays. It has no receive.
pub(crate) fn accept(ep: &Ep, private_data: &[u8]) -> Result<Conn> {
    let req = request(ep, &ConnCfg::new())?;
    let conn = req.connect(private_data)?;
    assert_eq!(event(&conn)?, ConnEvent::Established);
    Ok(conn)
}

/// The private data that describe memory.
pub(crate) fn describe(offset: u16, mr: &[u8; 21], pcfg: Option<u8>) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend([21, pcfg.is_some().into()]);
    bytes.extend(mr);
    bytes.extend(pcfg);
    bytes.resize(28, 0);
    bytes
}

/// Sends a message, and waits until it is where the other side receives it. For a receive it waits
/// as long as it has to: the device sends it again and again.
pub(crate) fn send(conn: &Conn, peer: &Peer, message: &[u8]) -> Result {
    let src = Mr::reg(peer, message.to_vec(), MrUsage::SEND)?;
    let all = src.slice(..)?;
    conn.send(all, Flags::COMPLETION_ALWAYS, 0)?;
    completion(conn)?.result()?;
    Ok(())
}

/// Posts a receive, and waits for its message.
pub(crate) fn receive(conn: &Conn, peer: &Peer) -> Result<Vec<u8>> {
    let dst = Mr::reg(peer, vec![0; 512], MrUsage::RECV)?;
    conn.recv(dst.slice(..)?, 0)?;
    let wc = completion(conn)?;
    let len = wc.result()?.byte_len();
    let mut message = vec![0; len.ok_or("its length")? as usize];
    dst.read_at(0, &mut message)?;
    Ok(message)
}

/// The bytes of a counter.
pub(crate) fn counter(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

/// The output of a client and its server when they send counters to and fro: `first`, and so many
/// values. The lines begin with "Value" or "value", so their first letter is left to [`around`].
pub(crate) fn ping_pong(first: u64, values: u64) -> (Vec<String>, Vec<String>) {
    let (mut client, mut server) = (Vec::new(), Vec::new());
    for value in first..first + values {
        client.push(format!("alue sent: {value}"));
        client.push(format!("alue received: {}", value + 1));
        server.push(format!("alue received: {value}"));
        server.push(format!("alue sent: {}", value + 1));
    }
    (client, server)
}

/// The same lines, with the program's text around them.
pub(crate) fn around(before: &str, lines: &[String], after: &str) -> Vec<String> {
    let line = |line: &String| format!("{before}{line}{after}");
    lines.iter().map(line).collect()
}

/// Programs that were started at the same time, as they end.
pub(crate) fn ends(started: Vec<(String, Program)>) -> impl Iterator<Item = (String, Ended)> {
    let end = |(what, program): (String, Program)| (what, program.finish());
    started.into_iter().map(end)
}
