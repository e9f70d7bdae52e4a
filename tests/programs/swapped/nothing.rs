//! Peers that describe no memory, or another than the example needs.

use crate::swapped::prelude::*;

// Private data that describes no memory. A side without private data seems to have sent zeros.

#[test]
fn c_servers_that_describe_nothing() {
    let cases: [(&str, &[&str]); 6] = [
        ("02-read-to-volatile", &[]),
        ("04-write-to-persistent", &[]),
        ("05-flush-to-persistent", &[]),
        ("07-atomic-write", &["word"]),
        (GPSPM[0], &[]),
        ("11-write-with-imm", &["7"]),
    ];
    together(&cases, |(example, more)| {
        let (rust, _) = c_server(example, &addr(), &["answer", ""], more);
        assert_fails(&rust, "descriptor");
    });
}

#[test]
fn a_c_client_of_03_that_describes_nothing() {
    let _test = device_test();
    let args = ["greet", ""];
    let (rust, _) = c_client("03-read-to-persistent", &addr(), &[], &args);
    assert_fails(&rust, "descriptor");
}

/// The memory is described, and there is too little of it; or too much: the client of 02 has room
/// for 1024 bytes.
#[test]
fn c_servers_that_offer_another_size() {
    let cases = [
        ("02-read-to-volatile", MrUsage::READ_SRC, 0, 1025),
        ("04-write-to-persistent", WRITE_READ, 17, 1040),
        (GPSPM[0], FLUSHABLE, 17, 1040),
    ];
    together(&cases, |&(example, usage, offset, size)| {
        let args = offer(usage, size, offset, "none", &[7; 17]);
        let (rust, c) = c_server(example, &addr(), &words(&args), &[]);
        assert_fails(&rust, &size.to_string());
        assert_eq!(told(&c, "memory "), padded([7; 17], size), "untouched");
    });
}
