//! 06, 06scch and 06tokio: the server reads the names of many clients.

use crate::common::program::Program;
use crate::swapped::prelude::*;

const MULTIPLE: [&str; 2] = ["06-multiple-connections", "06scch-multiple-connections"];

/// The servers: the client of 06tokio is that of 06.
const SERVERS: [&str; 3] = [MULTIPLE[0], MULTIPLE[1], "06tokio-multiple-connections"];

#[test]
fn c_clients_of_06_06scch_and_06tokio() {
    together(&SERVERS, |example| {
        let (mut server, port) = rust_server(example, &addr(), &[]);
        assert_eq!(server.line(), "Today I have got in touch with:");
        // One without an offer is sent away, and the server goes on.
        dial(&addr(), port, &["greet", ""]).done();
        let mut names = ["Ada", "Grace", "a name of thirty-one characters"];
        let clients = names.map(|name| {
            let args = ["offer", "0", "32", &hex(name.as_bytes())];
            dial(&addr(), port, &args)
        });
        let mut lines = [(); 3].map(|()| server.line());
        lines.sort();
        names.sort();
        assert_eq!(lines, names.map(|name| format!("- {name}")), "{example}");
        for client in clients {
            client.done();
        }
        // tests/programs/examples waits until the time limit ends such a server.
    });
}

#[test]
fn c_server_of_06_and_06scch() {
    together(&MULTIPLE, |example| {
        let (server, port) = listen(&addr(), &["fetch", "32", "2"]);
        let clients = ["8", "9"].map(|seed| rust_client(example, &addr(), port, &[seed]));
        let [first, second] = clients.map(Program::finish);
        assert_prints(&first, &["My names is: Chet"]);
        assert_prints(&second, &["My names is: Piotr"]);
        let c = server.done();
        assert_describes(&c, TO_SERVER, 0, 32..=32, MrUsage::READ_SRC, None);
        let mut names: Vec<_> = c.iter().filter(|l| l.starts_with("memory ")).collect();
        names.sort();
        let expected = ["Chet", "Piotr"].map(|name| hex(&padded(name, 32)));
        let expected = expected.map(|name| format!("memory {name}"));
        assert!(names.into_iter().eq(&expected), "{c:?}");
    });
}
