//! Clients of a `serve::Server`, which keeps an epoch and an instance for each key.

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::{Reconnect, ReconnectCfg, ToWriter};
use rpma::serve::{Served, ServerCfg};

use crate::common::prelude::*;
use crate::reconnect::support::{connect, quick};
use crate::serve::support::{Site, offer};

impl Site {
    fn comes_back(&self, identity: Identity) -> Result<Reconnect<ToWriter>> {
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        let (port, to_writer) = (self.server.get_port(), ToWriter::new(&cfg));
        let mut client = Reconnect::new(&self.far, &addr(), port, offer(identity), to_writer)?;
        client.set_cfg(&quick()?);
        Ok(client)
    }

    /// Takes the events, and admits each client.
    fn serve(&mut self) {
        let mut wcs = [Wc::default(); 4];
        while let Some(served) = self.server.next(&mut wcs, Duration::ZERO).expect("waits") {
            if let Served::Asks(asked) = served {
                self.admit(asked).expect("admitted");
            }
        }
    }
}

/// The server's reason, and the epoch that it keeps.
fn refused(gave_up: Error) -> (RefusalCode, u64) {
    match gave_up.refusal() {
        Some(refusal) => (refusal.code(), refusal.epoch()),
        None => panic!("{gave_up:?}"),
    }
}

/// Promise: a writer comes back again and again, also while its old connections look alive. Another
/// instance gets in with a higher epoch only, and the first writer learns of that.
#[test]
fn a_writer_comes_back_until_another_takes_over() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let mut first = site.comes_back(Identity::new(1, 1)?)?;
    let mut old = Vec::new();
    for _ in 0..10 {
        let writer = connect(&mut first, || site.serve());
        old.push(writer?);
    }
    assert_eq!(first.connected(), 10);
    let writer = old.pop().ok_or("the last one")?;
    for old in &old {
        assert_eq!(event(old.conn())?, ConnEvent::Closed, "it was cut off");
    }
    let ended = writer.conn().next_event_timeout(Duration::ZERO);
    ended.expect_err("it lives");
    old.push(writer);

    let other = Identity::new(1, 1)?;
    let mut second = site.comes_back(other)?;
    let gave_up = connect(&mut second, || site.serve()).map(drop);
    let (code, epoch) = refused(gave_up.expect_err("it is taken"));
    assert_eq!((code, epoch), (RefusalCode::Taken, 1));
    let mut offer = second.offer().clone();
    offer.set_identity(Identity {
        epoch: epoch + 1,
        ..other
    });
    second.set_offer(offer)?;
    let writer = connect(&mut second, || site.serve())?;

    let gave_up = connect(&mut first, || site.serve()).map(drop);
    let refused = refused(gave_up.expect_err("its epoch is old"));
    assert_eq!(refused, (RefusalCode::OldEpoch, 2));
    drop((writer, old));
    site.serve();
    Ok(())
}

/// Promise: a client that finds the server full gets in when another one has left.
#[test]
fn a_full_server_is_tried_again() -> Result {
    let _test = device_test();
    let mut site = Site::with(2, ServerCfg::new().set_most_clients(1)?)?;
    let ms = Duration::from_millis;
    let mut cfg = ReconnectCfg::new();
    cfg.set_waits(ms(1), ms(20))?;
    let mut holder = site.comes_back(Identity::new(1, 1)?)?;
    let mut late = site.comes_back(Identity::new(2, 1)?)?;
    holder.set_cfg(&cfg);
    late.set_cfg(&cfg);
    let mut first = Some(connect(&mut holder, || site.serve())?);
    let mut looks = 0;
    let second = connect(&mut late, || {
        site.serve();
        looks += 1;
        if looks == 200 {
            first = None;
        }
    });
    drop(second?);
    assert!(late.tries() > 1, "{late:?}");
    assert_eq!(late.connected(), 1);
    site.serve();
    Ok(())
}
