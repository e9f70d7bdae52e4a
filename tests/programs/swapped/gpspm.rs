//! 09 and 09scch: the client writes and asks the server to make it persistent, with a message.

use crate::swapped::prelude::*;

/// The 27 bytes of a request.
fn request(offset: u64, length: u64, op_context: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, field) in [(0x09, offset), (0x11, length), (0x19, op_context)] {
        bytes.push(tag);
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

/// The 9 bytes of a response.
fn response(op_context: u64) -> Vec<u8> {
    [vec![0x09], op_context.to_le_bytes().to_vec()].concat()
}

const OP_CONTEXT: u64 = 0x1122_3344_AABB_CCDD;

#[test]
fn c_client_of_09_and_09scch() {
    together(&GPSPM, |example| {
        let request = hex(&request(0, 1024, OP_CONTEXT));
        let args = ["gpspm", &hex(ES.as_bytes()), &request];
        let (rust, c) = c_client(example, &addr(), &[], &args);
        let lines = [
            "Flush request received: \
             {offset: 0x0, length: 0x400, op_context: 0x11223344AABBCCDD}",
            "New value: ¡Hola Mundo!",
        ];
        assert_prints(&rust, &lines);
        assert_describes(&c, TO_CLIENT, 0, 1024..=1024, FLUSHABLE, None);
        assert_eq!(told(&c, "answer "), response(OP_CONTEXT));
    });
}

#[test]
fn c_client_of_09_on_persistent_memory() -> Result {
    let _test = device_test();
    let pmem = devdax_with(&[])?;
    let request = hex(&request(17, 1024, 0xF01D));
    let args = ["gpspm", &hex(ES.as_bytes()), &request];
    let (rust, c) = c_client(GPSPM[0], &addr6(), &[&pmem], &args);
    let lines = [
        "Flush request received: {offset: 0x11, length: 0x400, op_context: 0xF01D}",
        "New value: ¡Hola Mundo!",
    ];
    assert_prints(&rust, &lines);
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    assert_describes(&c, TO_CLIENT, 17, 1041.., usage, None);
    assert_eq!(told(&c, "answer "), response(0xF01D));
    assert_eq!(on_devdax(SIGNATURE, TEXT)?, text(ES));
    Ok(())
}

#[test]
fn c_server_of_09_and_09scch() {
    together(&GPSPM, |example| {
        let args = ["gpspm", "17", "1041", &hex(&response(0xF01D))];
        let (rust, c) = c_server(example, &addr(), &args, &[]);
        assert_prints(&rust, &TRANSLATED);
        assert_eq!(told(&c, "request "), request(17, 1024, 0xF01D));
        assert_eq!(told(&c, "memory "), [vec![0; 17], text(EN)].concat());
    });
}

/// librpma's server would persist, and touch, any range.
#[test]
fn c_client_of_09_that_asks_for_what_is_not_offered() {
    let cases = [(GPSPM[0], 1, 1024), (GPSPM[1], u64::MAX, 2)];
    together(&cases, |&(example, offset, length)| {
        let request = hex(&request(offset, length, 0xF01D));
        let args = ["gpspm-refused", &hex(ES.as_bytes()), &request];
        let (rust, _) = c_client(example, &addr(), &[], &args);
        assert_fails(&rust, &format!("{length} bytes at {offset}"));
    });
}

#[test]
fn c_client_of_09_whose_request_is_none() {
    let whole = request(0, 1024, 0xF01D);
    let without_length = [&whole[..9], &whole[18..]].concat();
    let cases = [(GPSPM[0], &whole[..26]), (GPSPM[1], &without_length)];
    together(&cases, |(example, request)| {
        let args = ["gpspm-refused", &hex(ES.as_bytes()), &hex(request)];
        let (rust, _) = c_client(example, &addr(), &[], &args);
        assert_fails(&rust, "message");
        assert!(rust.stdout.is_empty(), "{rust:?}");
    });
}

#[test]
fn c_server_of_09_whose_response_is_none() {
    let cases = [
        (GPSPM[0], response(0xF01E), "0xF01E"),
        (GPSPM[1], Vec::new(), "message"),
    ];
    together(&cases, |(example, answer, why)| {
        let args = ["gpspm", "0", "1024", &hex(answer)];
        let (rust, _) = c_server(example, &addr(), &args, &[]);
        assert_fails(&rust, why);
        assert_eq!(rust.stdout, ["Next value: Hello world!"], "{rust:?}");
    });
}
