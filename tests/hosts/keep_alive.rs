//! Idle connections with a keep-alive, as a client and as a server at once, that report when they
//! end.

use rpma::Failure;

use crate::prelude::*;

/// For the other host to listen, and to answer.
const CONNECT: Duration = Duration::from_secs(60);
/// The connections to the other host, which accepts each of them: one for each kind of wait.
const WAYS: [&str; 2] = ["Conn::next", "Conn::keep_alive"];

/// Holds connections with another host that runs the same program, and stays idle. It prints each
/// that ends, and ends with the last one.
pub(crate) fn hold(own: &str, other: &str, port: &str, seconds: &str) -> Result<()> {
    let peer = Peer::at(own)?;
    let port = port.parse()?;
    let ep = Ep::listen(&peer, own, port)?;
    let mut cfg = ConnCfg::new();
    // They have no end on soft-RoCE.
    cfg.set_retry_count(7)?;
    cfg.set_keep_alive(Some(Duration::from_secs(seconds.parse()?)))?;
    let clients = WAYS.map(|way| {
        let (peer, cfg, other) = (peer.clone(), cfg.clone(), other.to_owned());
        thread::spawn(move || {
            client(&peer, &other, port, &cfg, way).map_err(|error| error.to_string())
        })
    });
    serve(&peer, ep, &cfg)?;
    for client in clients {
        client.join().map_err(|_| "a client panics")??;
    }
    Ok(())
}

/// Waits for the ends of all clients.
fn serve(peer: &Peer, ep: Ep, cfg: &ConnCfg) -> Result<()> {
    let mut wait = Wait::new()?;
    wait.add_ep(ep)?;
    println!("listening");
    // They are dropped last: soft-RoCE does not destroy a queue pair while its packets wait for the
    // address of a host that is gone, which takes some seconds.
    let (mut wcs, mut ended) = ([Wc::default(); 4], Vec::new());
    while ended.len() < WAYS.len() {
        match wait.next(&mut wcs, Duration::MAX)? {
            Some(Happened::Request(_, request)) => {
                let place = wait.place();
                let req = request.into_req(peer, &place.cfg(peer, cfg)?)?;
                wait.add(place, req.connect(&[])?)?;
            }
            Some(Happened::Event(_, ConnEvent::Established)) => println!("connected: a client"),
            Some(Happened::Event(client, event)) => {
                let conn = wait.remove(client).ok_or("it is a connection")?;
                gone("a client", &event, conn.failure());
                ended.push(conn);
            }
            Some(other) => return Err(format!("{other:?}").into()),
            None => {}
        }
    }
    dropped(ended);
    Ok(())
}

fn client(peer: &Peer, other: &str, port: u16, cfg: &ConnCfg, way: &'static str) -> Result<()> {
    let until = Instant::now() + CONNECT;
    let conn = loop {
        let conn = ConnReq::new(peer, other, port, cfg)
            .and_then(|req| req.connect(&[])?.wait_established(CONNECT));
        match conn {
            Ok(conn) => break conn,
            // The other host does not listen yet.
            Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(200)),
            Err(error) => return Err(error.into()),
        }
    };
    println!("connected: {way}");
    let event = match way {
        "Conn::next" => next(&conn)?,
        _ => look(&conn)?,
    };
    gone(way, &event, conn.failure());
    dropped(conn);
    Ok(())
}

fn next(conn: &Conn) -> Result<ConnEvent> {
    match conn.next(&mut [Wc::default()], Duration::MAX)? {
        Next::Event(event) => Ok(event),
        Next::Completions(_) => Err("a completion, and nothing was posted".into()),
    }
}

/// A loop of its own: it polls, takes events, and sleeps until the keep-alive is due.
fn look(conn: &Conn) -> Result<ConnEvent> {
    loop {
        if conn.get_cq().get_wc(&mut [Wc::default()])? > 0 {
            return Err("a completion, and nothing was posted".into());
        }
        match conn.next_event_timeout(Duration::ZERO) {
            Ok(event) => return Ok(event),
            Err(Error::NoEvent) => {}
            Err(error) => return Err(error.into()),
        }
        match conn.keep_alive() {
            Ok(Some(due)) => thread::sleep(due.saturating_duration_since(Instant::now())),
            Ok(None) => return Err("nothing is due any more".into()),
            Err(Error::Ended(event)) => return Ok(*event),
            Err(error) => return Err(error.into()),
        }
    }
}

fn gone(what: &str, event: &ConnEvent, failure: Option<Failure>) {
    println!("gone: {what}: {event}, {failure:?}");
}

/// Drops connections, and prints how long that took.
fn dropped<T>(conns: T) {
    let started = Instant::now();
    drop(conns);
    println!("dropped: {}", started.elapsed().as_millis());
}
