//! 10 and 11: immediate data.

use crate::swapped::prelude::*;

// 10: a message with immediate data, which the private data announces.

const IMM: u32 = 0x8000_04D2;

#[test]
fn c_client_of_10() {
    let (data, imm, word) = (hex(&IMM.to_le_bytes()), IMM.to_string(), hex(b"1st_word"));
    let args = ["send-imm", &data, &imm, &word];
    // Without a word the message is empty.
    together(&[(4, "1st_word"), (3, "")], |&(count, word)| {
        let (rust, _) = c_client("10-send-with-imm", &addr(), &[], &args[..count]);
        let line = format!("Received value '{word}' with immediate data '{IMM}'");
        assert_prints(&rust, &[&line]);
    });
}

#[test]
fn c_server_of_10() {
    let imm = IMM.to_string();
    let with_word = [&*imm, "1st_word"];
    let cases = [
        (&with_word[..], "value '1st_word' with ", text("1st_word")),
        (&with_word[..1], "", Vec::new()),
    ];
    together(&cases, |(args, what, message)| {
        let (rust, c) = c_server("10-send-with-imm", &addr(), &["send-imm"], args);
        let line = format!("Sending {what}immediate data '{IMM}'");
        assert_prints(&rust, &[&line]);
        assert_eq!(told(&c, "data "), padded(IMM.to_le_bytes(), TO_SERVER));
        let imm = format!("128 {} 800004d2", message.len());
        assert_eq!(find(&c, "imm "), imm);
        assert_eq!(told(&c, "message "), *message);
    });
}

// 11: a write with immediate data, which is also the written text.

#[test]
fn c_client_of_11() {
    let _test = device_test();
    let args = ["write-imm", &hex(&IMM.to_le_bytes()), &IMM.to_string()];
    let (rust, c) = c_client("11-write-with-imm", &addr(), &[], &args);
    let line = format!("The value '{IMM}' was written together with immediate data '{IMM}'");
    assert_prints(&rust, &[&line]);
    assert_describes(&c, TO_CLIENT, 0, 1024..=1024, MrUsage::WRITE_DST, None);
}

#[test]
fn c_server_of_11() {
    let _test = device_test();
    let imm = IMM.to_string();
    let (rust, c) = c_server("11-write-with-imm", &addr(), &["write-imm"], &[&imm]);
    let line = format!("Writing value '{IMM}' with immediate data '{IMM}'");
    assert_prints(&rust, &[&line]);
    assert_eq!(find(&c, "imm "), "129 1024 800004d2");
    assert_eq!(told(&c, "memory "), padded(IMM.to_le_bytes(), TEXT));
}

#[test]
fn c_client_of_10_and_11_whose_numbers_differ() {
    let number = hex(&IMM.to_le_bytes());
    let cases = [
        ("10-send-with-imm", "send-imm"),
        ("11-write-with-imm", "write-imm"),
    ];
    together(&cases, |(example, protocol)| {
        let (rust, _) = c_client(example, &addr(), &[], &[protocol, &number, "7"]);
        assert_fails(&rust, "7");
        assert!(rust.stdout.is_empty(), "{rust:?}");
    });
}
