//! How the examples treat memory that they cannot use, other offsets, and a log that is full.

use std::fs;

use crate::examples::pairs::forget;
use crate::examples::prelude::*;

/// All programs that support persistent memory, on the file at `path`.
fn all_on(path: &str) -> impl Iterator<Item = (String, Ended)> {
    let mut started = Vec::new();
    for example in EXAMPLES.iter().filter(|known| known.pmem.is_some()) {
        for role in ["client", "server"] {
            // To 07's client the path would be a word.
            if (example.name, role) != (full("07"), "client") {
                let program = Program::example(example.name, &[role, &addr(), "7204", path]);
                started.push((format!("{} {role}", example.name), program));
            }
        }
    }
    ends(started)
}

/// The originals crash.
#[test]
fn memory_that_is_not_persistent_is_an_error() -> Result {
    let dir = tempfile::tempdir_in(ext4())?;
    let path = dir.path().join("file");
    fs::write(&path, [0; 16384])?;
    let path = path.to_str().expect("text");
    for (what, ended) in all_on(path) {
        let ended = ended.failure(FAILURE, &what);
        assert!(ended.says("is not an actual PMEM"), "{what}: {ended:?}");
    }
    assert_eq!(fs::read(path)?, [0; 16384], "untouched");
    Ok(())
}

/// Soft-RoCE cannot register a file on a DAX file system, which is persistent memory otherwise.
#[test]
fn memory_that_the_device_cannot_reach_is_an_error() -> Result {
    let _test = device_test();
    let dir = tempfile::tempdir_in(fsdax())?;
    let path = dir.path().join("file");
    fs::write(&path, [0; 16384])?;
    let path = path.to_str().expect("text");
    for (what, ended) in all_on(path) {
        let ended = ended.failure(FAILURE, &what);
        let reason = "A file on a DAX file system can be registered only on a device with \
                      on-demand paging";
        assert!(ended.says(reason), "{what}: {ended:?}");
        assert_eq!(ended.stdout, [""; 0], "{what}: {ended:?}");
    }
    Ok(())
}

/// 03: the 16 bits for the place of the greeting wrap in the originals.
#[test]
fn a_pmem_offset_that_the_peer_cannot_be_told_is_refused() -> Result {
    let _test = device_test();
    let dax = devdax();
    // The signature and the number of the language are before the greeting.
    const LAST: usize = 65535 - 17 - 4;
    for offset in [LAST + 1, 65536] {
        let (what, offset) = (format!("offset {offset}"), offset.to_string());
        // No program listens there; it does not come to that.
        let client = client("03", free_port(&addr()), &[&dax, &offset]);
        let ended = client.finish().failure(FAILURE, &what);
        let reason = "beyond the 65535 that a peer can be told";
        assert!(ended.says(reason), "{what}: {ended:?}");
    }
    // A greeting that an earlier run has left there would do as well.
    let (server, client) = run("03", &[], &[&dax, &LAST.to_string()]);
    let client = client.success("the client");
    let next = client.stdout[0].strip_prefix("Next value: ");
    let new = format!("New value: {}", next.ok_or("a greeting")?);
    assert_eq!(server.success("the server").stdout, [new]);
    Ok(())
}

/// The originals initialise another place when the offset is not 0, and then find no greeting.
#[test]
fn a_pmem_offset_initialises_the_right_place() -> Result {
    let _test = device_test();
    const OFFSET: usize = 8192;
    forget()?;
    let before = memory()?;
    let (server, client) = run("04", &[], &[&devdax(), &OFFSET.to_string()]);
    server.success("the server");
    let client = client.success("the client");
    assert_eq!(client.stdout[0], "Next value: Hello world!");

    // The signature, the number of the other language, and the greeting in it.
    let mut expected = before;
    let mut put = |at: usize, bytes: &[u8]| {
        expected[OFFSET + at..][..bytes.len()].copy_from_slice(bytes);
    };
    put(0, b"RPMA_EXAMPLE_SIG\0");
    put(17, &[0; 1028]);
    put(17, &1_u32.to_le_bytes());
    put(21, "¡Hola Mundo!".as_bytes());
    assert!(memory()? == expected, "nothing else has changed");
    Ok(())
}

/// The contents of the part of the persistent memory that the examples use.
fn memory() -> Result<Vec<u8>> {
    let map = PmemMap::open(devdax(), 16384)?;
    let mut bytes = vec![0; 16384];
    map.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// 07: the originals write beyond the end of the log.
#[test]
fn a_word_that_does_not_fit_the_log_is_refused() -> Result {
    let _test = device_test();
    forget()?;
    let dax = devdax();
    let append = |words: &[&str]| run("07", &[&dax], words);
    let long = "a".repeat(1000);
    let (server, client) = append(&[&long]);
    client.success("it fits");
    assert_eq!(server.success("the server").stdout, [&*long]);

    // 23 bytes are left.
    let (too_long, fitting) = ("b".repeat(23), "c".repeat(22));
    for words in [&[&*too_long][..], &["d", &fitting]] {
        let before = memory()?;
        let (server, client) = append(words);
        let client = client.failure(FAILURE, &format!("{words:?}"));
        assert_eq!(client.stdout, ["used value: 1017"]);
        assert_eq!(server.success("the server").stdout, [&*long], "{words:?}");
        assert!(memory()? == before, "the log is as it was: {words:?}");
    }
    let (server, client) = append(&[&fitting]);
    client.success("it fits exactly");
    assert_eq!(server.success("the server").stdout, [&*long, &*fitting]);
    let (server, client) = append(&["e"]);
    let client = client.failure(FAILURE, "a full log");
    assert!(client.says("Log size exhausted."));
    assert_eq!(server.success("the server").stdout, [&*long, &*fitting]);
    Ok(())
}
