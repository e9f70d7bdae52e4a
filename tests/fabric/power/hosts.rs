//! Hosts that lose their power, and are started again.

use std::sync::mpsc;
use std::thread;

use rpma::sim::Errno;

use crate::common::prelude::*;
use crate::power::world::{ALWAYS, LIMIT, SIZE, Way, World, arrives};

/// In real time: threads wait here, and are waited for, as in any program. In the end no object is
/// left.
fn fabric(profile: &Profile) -> Emptied {
    Rig::of(profile).emptied()
}

fn world(fabric: &Fabric) -> Result<World> {
    Ok(World::new(fabric, Way::on(Platform::AdrDdioOff))?)
}

/// Flushed data is there after the cut, in new memory; the old mapping is unused.
#[test]
fn what_was_flushed_is_there_after_a_restart() -> Result {
    for profile in Profile::EVERY {
        let fabric = fabric(&profile);
        let old = world(&fabric)?;
        old.write(0, b"durable!")?;
        if profile.is_adapter() || old.conn.has_native_flush() {
            old.flush(0, 8)?
        } else {
            old.ask_to_persist(0, 8)?
        }
        fabric.power_cut(&old.server);
        assert!(!old.server.has_power());
        assert_eq!(&old.pmem.bytes()[..8], b"durable!");
        // A program that is dead writes to memory that is not read, and makes nothing durable.
        old.target.write_at(0, b"zombie!!")?;
        old.target.persist(..).expect_err("it is dead");
        let entered = old.server.enter();
        let error = PmemMap::open(old.pmem.path(), SIZE).expect_err("no power");
        assert_says(&error, &["has no power"]);
        drop(entered);

        old.server.restart();
        assert!(old.server.has_power());
        let new = old.hosts.clone().connect()?;
        assert_eq!(&new.seen()?, b"durable!");
        new.write(8, b"again")?;
        new.wait_for_write()?;
    }
    Ok(())
}

/// A program that is killed loses its connections, with notice to its peers, and no byte of its
/// memory.
#[test]
fn a_killed_program_loses_no_memory() -> Result {
    for profile in Profile::EVERY {
        let fabric = fabric(&profile);
        let old = world(&fabric)?;
        old.write(0, b"written!")?;
        old.wait_for_write()?;
        old.target.write_at(8, b"stored!!")?;
        old.server.kill();
        assert!(old.server.has_power());
        let event = old.conn.next_event_timeout(LIMIT)?;
        assert_eq!(event, ConnEvent::Closed);
        let addr = old.server.addr().to_string();
        let dead = Ep::listen(&old.peers.1, &addr, 0).expect_err("it is of the killed program");
        assert_eq!(dead.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
        // A program that is dead writes where no program looks.
        old.target.write_at(0, b"zombie!!")?;

        let new = old.hosts.clone().connect()?;
        assert_eq!(&new.seen()?, b"written!stored!!");
        new.write(0, b"goes on.")?;
        new.wait_for_write()?;
    }
    Ok(())
}

/// By the seed a cut leaves one legal image, the same each time, and over some seeds more than one.
#[test]
fn a_cut_leaves_one_image_by_the_seed() -> Result {
    let left = |seed| -> Result<Vec<u8>> {
        let fabric = fabric(&Profile::STRICT);
        fabric.set_seed(seed);
        let world = world(&fabric)?;
        world.write(0, &[1; 256])?;
        fabric.settle();
        fabric.power_cut(&world.server);
        Ok(world.pmem.bytes())
    };
    let mut all = Vec::new();
    for seed in 0..20 {
        let image = left(seed)?;
        assert!(image == left(seed)?, "seed {seed}");
        // A word has come or not, or it is torn at one place, once in a line.
        let is_torn = |word: &&[u8]| ![[0; 8], [1; 8]].contains(&(*word).try_into().expect("8"));
        let cuts = |word: &[u8]| word.windows(2).filter(|world| world[0] != world[1]).count();
        for line in image[..256].chunks(64) {
            let torn: Vec<_> = line.chunks(8).filter(is_torn).collect();
            assert!(torn.len() <= 1 && torn.iter().all(|word| cuts(word) == 1));
        }
        assert!(image[256..].iter().all(|byte| *byte == 0));
        all.push(image);
    }
    all.sort();
    all.dedup();
    assert!(all.len() > 10, "{}", all.len());
    Ok(())
}

/// On a host without power the waits of a program end, its calls fail, and its objects can be
/// dropped; no object leaks.
#[test]
fn a_program_on_a_dead_host_ends() -> Result {
    for profile in Profile::EVERY {
        let fabric = fabric(&profile);
        let server = fabric.host("server");
        let addr = server.addr().to_string();
        let serving = server.spawn(move || -> rpma::Result<()> {
            let peer = Peer::at(&addr)?;
            let ep = Ep::listen(&peer, &addr, 7)?;
            ep.next_conn_req(&ConnCfg::new()).map(drop)
        });
        // Listening, as far as it can be observed.
        while !fabric.calls().contains_key("rdma_listen") {
            thread::sleep(Duration::from_millis(1));
        }
        fabric.power_cut(&server);
        let ended = serving.join().expect("no panic");
        let error = ended.expect_err("its host has no power");
        assert_says(&error, &["rdma_get_cm_event failed: No such device"]);

        // A thread that was there before is on no host.
        server.restart();
        let _before = server.enter();
        fabric.power_cut(&server);
        let device = || Device::from_addr(&server.addr().to_string(), Side::Local);
        assert_says(&device().expect_err("dead"), &["lost its power"]);
        server.restart();
        let _entered = server.enter();
        device()?;
    }
    Ok(())
}

/// A client of a host without power learns it by its operations, and by no event; so does the one
/// that waits on the dead host for completions.
#[test]
fn the_peers_of_a_dead_host_are_told_by_their_operations() -> Result {
    let fabric = fabric(&Profile::STRICT);
    let world = world(&fabric)?;
    fabric.power_cut(&world.server);
    world.write(0, b"lost")?;
    let told = world.flush(0, 4).expect_err("nobody answers");
    assert_says(&told, &["RETRY_EXC_ERR"]);
    let error = arrives(&world.far, 9).expect_err("no power");
    println!("{error}");
    Ok(())
}

/// Each wait of a program without a limit of its own ends when its host loses its power, in each
/// state of the network; after the restart everything works, and no object is left.
#[test]
fn every_wait_on_a_dead_host_ends() -> Result {
    type Wait = fn(&Conn, &Ep, &Peer);
    type Change = fn(&Link, &Host);
    let waits: [(&str, Wait); 6] = [
        ("completions", |conn, _, _| drop(conn.get_cq().wait())),
        ("either queue", |conn, _, _| drop(conn.wait().map(drop))),
        ("events", |conn, _, _| drop(conn.next_event())),
        ("anything", |conn, _, _| drop(conn.next(&mut [], 6 * LIMIT))),
        ("a request", |_, ep, _| {
            drop(ep.next_conn_req(&ConnCfg::new()))
        }),
        ("an answer", |_, _, peer| {
            let asked = ConnReq::new(peer, "10.77.0.1", 9, &ConnCfg::new());
            let asking = asked.and_then(|asked| Ok(asked.connect(&[])?));
            drop(asking.and_then(|asking| asking.next_event()));
        }),
    ];
    let states: [(&str, Change); 4] = [
        ("as it is", |_, _| ()),
        ("frozen", |_, server| server.freeze()),
        ("parted", |link, _| link.partition()),
        ("slow", |link, _| link.delay(Duration::from_millis(1))),
    ];
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for (state, change) in states {
            for (what, wait) in waits {
                println!("{what}, {state}");
                let fabric = fabric(&profile);
                let world = world(&fabric)?;
                change(&world.link(), &world.server);
                let (far, (near, peer)) = (world.far, world.peers);
                let others = (world.target, world.messages, world.other.1);
                let hosts = world.hosts;
                let (ended, has_ended) = mpsc::channel();
                let waiting = hosts.server.spawn(move || {
                    let addr = Host::current().map(|host| host.addr().to_string());
                    let ep = addr.map(|addr| Ep::listen(&peer, &addr, 0));
                    if let Some(Ok(ep)) = ep {
                        wait(&far, &ep, &peer);
                    }
                    drop((far, others));
                    let _ = ended.send(());
                });
                fabric.power_cut(&hosts.server);
                let ended = has_ended.recv_timeout(2 * LIMIT);
                assert!(ended.is_ok(), "{what}, {state}: it does not end");
                waiting.join().expect("no panic");
                drop((world.conn, world.source, world.other.0, near));
                hosts.link().heal();
                hosts.server.restart();
                let again = hosts.connect()?;
                again.write(0, &[1])?;
                again.wait_for_write()?;
            }
        }
    }
    Ok(())
}

/// A thread on no host works for some seconds, while a server waits.
#[test]
fn who_is_on_no_host_works() -> Result {
    let fabric = Rig::strict().jumping().fabric();
    let world = world(&fabric)?;
    let (server, far) = (world.server.clone(), world.far);
    let waiting = server.spawn(move || far.next_event().map(drop));
    for _ in 0..60 {
        thread::sleep(Duration::from_millis(100));
        let to = world.remote.slice(0..8)?;
        let conn = &world.conn;
        let written = conn.write(to, world.source.slice(..8)?, ALWAYS, 1)?;
        conn.wait_for(written, LIMIT, |_| {})?;
    }
    drop(world.conn);
    assert!(waiting.join().is_ok(), "the server has not waited in vain");
    Ok(())
}
