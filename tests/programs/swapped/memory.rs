//! 01 to 05: reading and writing memory that the other side offers.

use crate::swapped::prelude::*;

// 01: a text in the private data, each way.

#[test]
fn c_client_of_01() {
    let _test = device_test();
    let hello = hex(b"Hello server!\0");
    let (rust, c) = c_client("01-connection", &addr(), &[], &["greet", &hello]);
    assert_prints(&rust, &["Received a message: Hello server!"]);
    assert_eq!(told(&c, "data "), padded(b"Hello client!", TO_CLIENT));
}

#[test]
fn c_server_of_01() {
    let _test = device_test();
    let hello = hex(b"Hello client!\0");
    let (rust, c) = c_server("01-connection", &addr6(), &["greet", &hello], &[]);
    assert_prints(&rust, &["Received a message: Hello client!"]);
    assert_eq!(told(&c, "data "), padded(b"Hello server!", TO_SERVER));
}

// 02: the client reads from the server.

#[test]
fn c_client_of_02() {
    let _test = device_test();
    let (rust, c) = c_client("02-read-to-volatile", &addr(), &[], &["read"]);
    assert_prints(&rust, &[]);
    assert_describes(&c, TO_CLIENT, 0, 14..=14, MrUsage::READ_SRC, None);
    assert_eq!(told(&c, "memory "), b"Hello client!\0");
}

#[test]
fn c_server_of_02() {
    let _test = device_test();
    let args = offer(MrUsage::READ_SRC, 14, 0, "none", b"Hello client!\0");
    let (rust, _) = c_server("02-read-to-volatile", &addr(), &words(&args), &[]);
    assert_prints(&rust, &["Read a message: Hello client!"]);
}

// 03: the server reads from the client.

#[test]
fn c_client_of_03() {
    // As on DRAM and as on persistent memory: after the signature.
    together(&[(4, ES), (4 + SIGNATURE, EN)], |(offset, greeting)| {
        let (at, size) = (offset.to_string(), (offset + TEXT).to_string());
        let args = ["offer", &at, &size, &hex(greeting.as_bytes())];
        let (rust, _) = c_client("03-read-to-persistent", &addr(), &[], &args);
        assert_prints(&rust, &[&format!("New value: {greeting}")]);
    });
}

#[test]
fn c_client_of_03_on_persistent_memory() -> Result {
    let _test = device_test();
    // The data that librpma's server has left there in an earlier run.
    let earlier = [b"RPMA_EXAMPLE_SIG\0", EN.as_bytes()].concat();
    let pmem = devdax_with(&earlier)?;
    let args = ["offer", "4", "1028", &hex(ES.as_bytes())];
    let (rust, _) = c_client("03-read-to-persistent", &addr6(), &[&pmem], &args);
    let lines = ["Old value: Hello world!", "New value: ¡Hola Mundo!"];
    assert_prints(&rust, &lines);
    assert_eq!(on_devdax(SIGNATURE, TEXT)?, text(ES));
    Ok(())
}

#[test]
fn c_server_of_03() {
    let _test = device_test();
    let args = ["fetch", "1024", "1"];
    let (rust, c) = c_server("03-read-to-persistent", &addr(), &args, &[]);
    assert_prints(&rust, &TRANSLATED);
    assert_describes(&c, TO_SERVER, 4, 1028..=1028, MrUsage::READ_SRC, None);
    assert_eq!(told(&c, "memory "), text(EN));
}

// 04: the client writes, and reads a little after it.

#[test]
fn c_client_of_04() {
    let _test = device_test();
    let args = ["write", &hex(ES.as_bytes())];
    let (rust, c) = c_client("04-write-to-persistent", &addr(), &[], &args);
    assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
    assert_describes(&c, TO_CLIENT, 0, 1024..=1024, WRITE_READ, None);
}

#[test]
fn c_client_of_04_on_persistent_memory() -> Result {
    let _test = device_test();
    let pmem = devdax_with(&[])?;
    let args = ["write", &hex(ES.as_bytes())];
    let (rust, c) = c_client("04-write-to-persistent", &addr6(), &[&pmem], &args);
    assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
    assert_describes(&c, TO_CLIENT, 17, 1041.., WRITE_READ, None);
    assert_eq!(on_devdax(SIGNATURE, TEXT)?, text(ES));
    Ok(())
}

#[test]
fn c_server_of_04() {
    let _test = device_test();
    let args = offer(WRITE_READ, 17 + TEXT, 17, "none", &[7; 17]);
    let (rust, c) = c_server("04-write-to-persistent", &addr(), &words(&args), &[]);
    assert_prints(&rust, &TRANSLATED);
    assert_eq!(told(&c, "memory "), [vec![7; 17], text(EN)].concat());
}

// 05: the client writes and flushes. The C library flushes natively, and registers for that without
// the right to read. So this works only with a library that has native flush as well.

#[test]
fn c_client_of_05() {
    let _test = device_test();
    let args = ["flush", &hex(ES.as_bytes())];
    let (rust, c) = c_client("05-flush-to-persistent", &addr(), &[], &args);
    assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
    assert_describes(&c, TO_CLIENT, 0, 1024..=1024, FLUSHABLE, Some(false));
    assert!(c.contains(&flushed(1)), "{c:?}");
}

#[test]
fn c_client_of_05_on_persistent_memory() -> Result {
    let _test = device_test();
    let pmem = devdax_with(&[])?;
    let args = ["flush", &hex(ES.as_bytes())];
    let (rust, c) = c_client("05-flush-to-persistent", &addr6(), &[&pmem, "on"], &args);
    assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
    assert_describes(&c, TO_CLIENT, 17, 1041.., DURABLE, Some(true));
    assert!(c.contains(&flushed(0)), "{c:?}");
    assert_eq!(on_devdax(SIGNATURE, TEXT)?, text(ES));
    Ok(())
}

#[test]
fn c_server_of_05() -> Result {
    const SUPPORTED: &str = "RPMA_FLUSH_TYPE_PERSISTENT is supported";
    const NOT_SUPPORTED: &str = "RPMA_FLUSH_TYPE_PERSISTENT is NOT supported, \
                                 RPMA_FLUSH_TYPE_VISIBILITY is used instead";
    let [next, translating, translation] = TRANSLATED;
    let pmem = devdax_with(&[])?;
    let cases = [
        (FLUSHABLE, "off", None, NOT_SUPPORTED),
        (DURABLE, "on", Some(&pmem), SUPPORTED),
    ];
    together(&cases, |(usage, direct, path, line)| {
        let args = offer(*usage, 17 + TEXT, 17, direct, &[7; 17]);
        let args: Vec<String> = args.into_iter().chain(path.cloned()).collect();
        let (rust, c) = c_server("05-flush-to-persistent", &addr(), &words(&args), &[]);
        if NATIVE {
            assert_prints(&rust, &[next, line, translating, translation]);
        } else {
            assert_fails(&rust, "remote access error");
        }
        assert_eq!(told(&c, "memory "), [vec![7; 17], text(EN)].concat());
    });
    Ok(())
}
