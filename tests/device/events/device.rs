//! The events of the device itself.

use std::io;
use std::process::Command;

use rpma::DeviceEventKind;
use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::events::support::{SHORT, finished, none, nothing, started};

/// The second device's network interface, which goes down and comes up again, also if the test
/// fails.
struct Interface(String);

impl Interface {
    fn of(addr: &str) -> Result<Self> {
        let mut ip = Command::new("ip");
        let output = ip.args(["-o", "addr", "show", "to", addr]).output()?;
        let text = String::from_utf8(output.stdout).expect("text");
        // 3: eth1    inet 10.78.0.1/24 …
        let name = text.split_whitespace().nth(1);
        Ok(Self(name.ok_or("an interface has the address")?.to_owned()))
    }

    fn set(&self, state: &str) -> io::Result<()> {
        let mut ip = Command::new("ip");
        match ip.args(["link", "set", "dev", &self.0, state]).status()? {
            status if status.success() => Ok(()),
            _ => Err(io::Error::other("ip link set")),
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.set("up").expect("it was up before");
    }
}

/// Promise: any wait takes asynchronous events of the device, even waits that are over at once, and
/// without making them shorter; they are in the log.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: a network interface")]
fn a_port_that_goes_down_is_in_the_log() -> Result {
    lines::keep_all();
    let _test = device_test();
    let peer = Peer::at(&other_addr())?;
    let channel = CompletionChannel::new(&peer)?;
    let ep = Ep::listen(&peer, &other_addr(), 0)?;
    let mut wait = Wait::new()?;
    let place = wait.place();
    place.cfg(&peer, &ConnCfg::new())?;
    let interface = Interface::of(&other_addr())?;
    let limit = SHORT * 20;
    let waiter = started(move || {
        let start = Instant::now();
        (channel.wait_timeout(limit), start.elapsed())
    });
    interface.set("down")?;
    let (waited, elapsed) = finished("a wait", waiter);
    none(waited);
    assert!(elapsed >= limit, "{elapsed:?}");
    let takes = || nothing(ep.next_conn_req_timeout(&ConnCfg::new(), Duration::ZERO));
    comes("port error (port 1)", takes);
    is_told(&mut wait, DeviceEventKind::PortDown(1))?;

    interface.set("up")?;
    comes("port active (port 1)", takes);
    is_told(&mut wait, DeviceEventKind::PortUp(1))
}

/// A wait that has a place on the device returns its event, although another wait has taken it.
fn is_told(wait: &mut Wait, expected: DeviceEventKind) -> Result {
    let mut wcs = [Wc::default()];
    loop {
        match wait.next(&mut wcs, LIMIT)? {
            Some(Happened::Device(_, kind)) if kind == expected => return Ok(()),
            Some(Happened::Device(..)) => {}
            other => panic!("{expected:?}: {other:?}"),
        }
    }
}

/// Waits, in moments, until there is such a line in the log. There may be more: how many events it
/// makes of one change is the kernel's affair.
fn comes(text: &str, wait: impl Fn()) {
    until(&format!("no line has {text}"), || {
        wait();
        lines::any_of_all(text)
    });
}
