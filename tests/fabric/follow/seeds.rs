//! Awaited programs with seeds, under each fault and under several.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::thread;

use rpma::sim::{Trace, repeatable, storm, sweep};
use tokio::time::timeout;

use crate::follow::prelude::*;

/// The instants of a run, from its beginning, and its calls.
type History = (Vec<Duration>, Trace);

fn peer_of(host: &Host) -> rpma::Result<Peer> {
    let _entered = host.enter();
    Peer::at(&host.addr().to_string())
}

/// A client that writes twice to a server on a slow link, in the time of a paused runtime. With a
/// fault it may fail.
fn program(fabric: &Fabric) -> Option<History> {
    paused::runtime().block_on(async {
        paused::follow(fabric);
        let ticking = paused::tick(fabric);
        let hosts = ["client", "server"].map(|name| fabric.host(name));
        let link = fabric.between(&hosts[0], &hosts[1]);
        link.delay_up_to(Duration::from_millis(200));
        let (begin, mut instants) = (tokio::time::Instant::now(), Vec::new());
        let run = async {
            let [near, far] = hosts.each_ref().map(|host| peer_of(host).ok());
            let (near, addr) = (near?, hosts[1].addr());
            let ep = Ep::listen(&far?, &addr.to_string(), 0).ok()?;
            let at = (addr, ep.get_port()).into();
            let cfg = ConnCfg::new();
            let serving = tokio::spawn(async move {
                let _ = ep.set_nonblocking(true);
                loop {
                    match ep.next_conn_req(&cfg) {
                        Err(Error::NoEvent) => readable(&ep).await,
                        request => return request.ok()?.connect(&[]).ok(),
                    }
                }
            });
            let request = ConnReq::resolve(&near, at, &ConnCfg::new()).ok()?;
            let client = resolved(request).await.ok()?.connect(&[]).ok()?;
            let mut wcs = [Wc::default()];
            next(&client, &mut wcs).await.ok()?;
            for _ in 0..2 {
                client
                    .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 0)
                    .ok()?;
                next(&client, &mut wcs).await.ok()?;
                instants.push(begin.elapsed());
            }
            serving.abort();
            let _ = serving.await;
            Some(())
        };
        // No fault lets it wait for ever.
        let done = timeout(DAY, run).await.ok().flatten();
        ticking.abort();
        done.map(|()| (instants, fabric.trace()))
    })
}

/// Promise: a seed repeats an awaited program, and other seeds have other orders.
#[test]
fn a_seed_repeats_tasks() {
    let run = |seed| {
        let fabric = Rig::of(&Profile::STRICT).seed(seed).fabric();
        let history = program(&fabric).expect("it ends without a failure");
        assert_eq!(fabric.why_not_repeatable(), None);
        history
    };
    let all: Vec<_> = (1..=6).map(run).collect();
    assert_eq!(all, (1..=6).map(run).collect::<Vec<_>>());
    let instants: BTreeSet<_> = all.into_iter().map(|(instants, _)| instants).collect();
    assert!(instants.len() > 3, "{instants:?}");
    repeatable(Profile::STRICT, |fabric| assert!(program(fabric).is_some()));
}

/// Promise: the faults of a sweep and of a storm come to an awaited program, each run in the time
/// of its own runtime.
#[test]
fn faults_come_to_tasks() {
    let (failed, runs) = (Cell::new(0), RefCell::new(BTreeSet::new()));
    let count = sweep(&Profile::STRICT, |fabric| match program(fabric) {
        Some((instants, _)) => drop(runs.borrow_mut().insert(instants)),
        None => failed.set(failed.get() + 1),
    });
    assert!(
        count > 100 && failed.get() > 20,
        "{} of {count}",
        failed.get()
    );
    let all = Cell::new(0);
    storm(&Profile::STRICT, 20, |fabric| {
        program(fabric);
        all.set(all.get() + 1);
    });
    assert_eq!(all.get(), 21);
}

/// Promise: a second thread is a reason why a run may not repeat.
#[test]
fn a_second_thread_is_reported() {
    let fabric = Rig::new().seed(1).fabric();
    paused::runtime().block_on(async { paused::follow(&fabric) });
    let host = fabric.host("here");
    thread::scope(|scope| {
        scope.spawn(|| drop(host.enter()));
    });
    let why = fabric.why_not_repeatable().expect("a reason");
    assert!(why.contains("beside another thread"), "{why}");
}
