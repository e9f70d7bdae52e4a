//! The acknowledgement of each request of a run is lost, one in each run: requests to a replica,
//! and the answers of a server.

use crate::replicas::cluster::Cluster;
use crate::replicas::prelude::*;

const RECORDS: u64 = 4;

/// How an acknowledgement is lost: with its connection, or until the request is sent again.
type Lose = fn(&Link, u32);

/// Appends records; `false`: there are fewer requests.
fn run(profile: &Profile, way: Way, lose: Lose, from_server: bool, nth: u32) -> Result<bool> {
    let fabric = Rig::of(profile).seed(9).fabric();
    let mut of = Cluster::new(&fabric, way, 2)?;
    let link = if from_server {
        fabric.between(&of.hosts[1], &of.client)
    } else {
        fabric.between(&of.client, &of.hosts[1])
    };
    lose(&link, nth);
    let mut acknowledged = [0; 3];
    for number in 0..RECORDS {
        let id = of.append(number, 2)?;
        let outcome = of.log.settle(id, 2, LIMIT);
        assert!(outcome.copies() >= 2, "{number}: {outcome:?}");
        // The third copy, or the end of its connection.
        let outcome = of.log.settle(id, 3, LIMIT);
        let named = Named::by(&of.log, outcome);
        for (replica, acknowledged) in acknowledged.iter_mut().enumerate() {
            if named.durable & 1 << replica != 0 {
                *acknowledged = number + 1;
            }
        }
        if named.unknown != 0 {
            // Its connection is over, and it holds no bytes after this.
            of.log.set_aside(of.ids[1], LIMIT)?;
        }
    }
    let has_happened = link.disarm() == 0;
    sleep(LIMIT);
    of.cut_all();
    for (replica, told) in acknowledged.into_iter().enumerate() {
        let shown = whole(&of.pmems[replica].bytes());
        assert!(shown >= told, "replica {replica}: {shown} of {told}");
    }
    Ok(has_happened)
}

/// The other two replicas go on, and each replica keeps the records that it has acknowledged.
#[test]
fn an_acknowledgement_is_lost_at_each_request() {
    for profile in Profile::EVERY {
        for method in [methods(&profile), vec![Method::Server]].concat() {
            let platform = match method {
                Method::Reading => Platform::AdrDdioOff,
                _ => Platform::AdrDdioOn,
            };
            let way = Way::durable(method, platform);
            if method != Method::Server && !way.may_be_durable(&profile) {
                continue;
            }
            for lose in [Link::lose_acknowledgement as Lose, Link::lose_answer] {
                for from_server in [false, true] {
                    if from_server && method != Method::Server {
                        continue;
                    }
                    let runs =
                        |nth: &u32| run(&profile, way, lose, from_server, *nth).expect("released");
                    let requests = (1..).take_while(runs).count() as u64;
                    let least = if from_server { RECORDS } else { 2 * RECORDS };
                    let name = profile.name();
                    assert!(requests >= least, "{name}, {method}: {requests}");
                }
            }
        }
    }
}
