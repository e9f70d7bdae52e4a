//! 07: the client appends words to a log on the server.

use crate::swapped::prelude::*;

const LOG: usize = 1040;

/// The log as it is in memory: a signature, how much is used, words that end with a zero.
fn log(signature: &[u8], used: u64, words: &[u8]) -> Vec<u8> {
    let header = [padded(signature, 8), used.to_le_bytes().to_vec()].concat();
    padded([&header, words].concat(), LOG)
}

#[test]
fn c_client_of_07() {
    let _test = device_test();
    let args = ["log", "first", "second"];
    let (rust, c) = c_client("07-atomic-write", &addr(), &[], &args);
    let usage = WRITE_READ | MrUsage::FLUSH_TYPE_VISIBILITY;
    assert_describes(&c, TO_CLIENT, 8, 1040..=1040, usage, None);
    assert_eq!(find(&c, "used "), "16");
    match NATIVE {
        true => assert_prints(&rust, &["first", "second"]),
        false => assert!(c.contains(&flushed(1)), "{c:?}"),
    }
}

#[test]
fn c_client_of_07_on_persistent_memory() -> Result {
    let _test = device_test();
    let pmem = devdax_with(&log(b"LOG", 22, b"first\0"))?;
    let args = ["log", "second"];
    let (rust, c) = c_client("07-atomic-write", &addr6(), &[&pmem], &args);
    let usage = WRITE_READ | MrUsage::FLUSH_TYPE_PERSISTENT;
    assert_describes(&c, TO_CLIENT, 8, 1040.., usage, None);
    assert_eq!(find(&c, "used "), "22");
    if NATIVE {
        assert_prints(&rust, &["first", "second"]);
        assert_eq!(on_devdax(0, LOG)?, log(b"LOG", 29, b"first\0second\0"));
    } else {
        assert_prints(&rust, &["first"]);
        assert!(c.contains(&flushed(0)), "{c:?}");
    }
    Ok(())
}

/// Offers a C log with so many used bytes.
fn c_log(used: u64, more: &[&str]) -> Outcome {
    let usage = WRITE_READ | MrUsage::FLUSH_TYPE_VISIBILITY;
    let args = offer(usage, LOG, 8, "none", &log(b"", used, b""));
    c_server("07-atomic-write", &addr(), &words(&args), more)
}

#[test]
fn c_server_of_07() {
    let _test = device_test();
    // Two words that just fit.
    let (rust, c) = c_log(1027, &["1st_word", "2nd"]);
    assert_prints(&rust, &["used value: 1027"]);
    let mut expected = log(b"", 1040, b"");
    expected[1027..].copy_from_slice(b"1st_word\x002nd\0");
    assert_eq!(told(&c, "memory "), expected);
}

/// librpma's client would write beyond the log, or over its header.
#[test]
fn c_server_of_07_whose_log_has_no_room() {
    together(&[1036, u64::MAX - 1, 8], |&used| {
        let (rust, c) = c_log(used, &["word"]);
        let why = match used {
            1036 => "need 5 bytes",
            _ => "damaged",
        };
        assert_fails(&rust, why);
        assert_eq!(told(&c, "memory "), log(b"", used, b""), "{used}");
    });
}
