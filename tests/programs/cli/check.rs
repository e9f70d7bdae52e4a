//! `rpma serve` and `rpma check` on one host. `cargo xtask test hosts` has two.

use std::fs;
use std::fs::File;

use crate::cli::prelude::*;

/// The memory that a server needs.
const LEN: u64 = 2 << 20;
/// Cases that take a moment, of each group.
const SHORT: [&str; 9] = [
    "--only",
    "declaration",
    "transfer-gather",
    "message",
    "atomic",
    "batch",
    "commit",
    "rights",
    "connection-closed",
];

/// A server that listens, and its address.
pub(crate) fn serve(more: &[&str]) -> (Program, String) {
    let server = format!("{}:{}", addr(), free_port(&addr()));
    let program = executable();
    let args = [&[&*program, "serve", &server], more].concat();
    let mut running = Program::start(&args, LIMIT);
    running.wait_for("listening on");
    (running, server)
}

fn check(server: &str, more: &[&str]) -> Ended {
    rpma(&[&["check", server], more, &SHORT].concat())
}

/// With persistent memory, natively and with the fallbacks.
#[test]
fn a_host_checks_itself() {
    let (_running, server) = serve(&["--memory", &devdax(), "--overwrite"]);
    for more in [&[][..], &["--fallback"]] {
        let ended = check(&server, more).success("check");
        found(&ended, " 0 failed, ");
        let (line, _) = found(&ended, "server: ");
        let is_known = line.contains("Ethernet") && !line.contains("unknown, M");
        assert!(is_known, "{line}");
    }
}

/// A server is served by the next client after a client that was killed.
#[test]
fn a_client_that_is_killed_is_followed_by_the_next() {
    let (_running, server) = serve(&[]);
    let program = executable();
    let mut client = Program::start(&[&program, "check", &server], LIMIT);
    client.wait_for("passed  transfer-write");
    client.kill();
    // The server may learn of the end after the next client has asked.
    let begin = Instant::now();
    while check(&server, &[]).status != Some(0) {
        assert!(begin.elapsed() < LIMIT, "the server is still busy");
    }
}

#[test]
fn memory_with_data_is_kept() -> Result {
    // The mark of another server may be there.
    let path = format!("{}/served", ext4());
    fs::write(&path, vec![1; LEN as usize])?;
    let ended = rpma(&["serve", &addr(), "--memory", &path]).failure(1, "data");
    fs::remove_file(&path)?;
    assert!(ended.says("add --overwrite"), "{ended:?}");
    assert_eq!(ended.stderr.len(), 1, "{ended:?}");
    Ok(())
}

/// The kernel registers no page cache for writing.
#[test]
fn an_ordinary_file_is_not_served() -> Result {
    let path = format!("{}/served-zeros", ext4());
    let file = File::create(&path)?;
    file.set_len(LEN)?;
    let ended = rpma(&["serve", &addr(), "--memory", &path]).failure(1, "a file");
    fs::remove_file(&path)?;
    assert_eq!(ended.stderr.len(), 1, "{ended:?}");
    Ok(())
}

#[test]
fn wrong_servers_are_one_line() {
    let free = format!("{}:{}", addr(), free_port(&addr()));
    for (args, words) in [
        (&["serve", "127.0.0.1"][..], "127.0.0.1"),
        (&["serve", "0.0.0.0"], "0.0.0.0"),
        (&["serve", "198.51.100.7"], "rdma_bind_addr"),
        (&["serve", &addr(), "--memory", "/"], "directory"),
        (&["check", "127.0.0.1"], "127.0.0.1"),
        (&["check", &free], "Start `rpma serve`"),
    ] {
        let ended = rpma(args).failure(1, "a wrong server");
        assert!(ended.says(words), "{args:?}: {ended:?}");
        assert_eq!(ended.stderr.len(), 1, "{ended:?}");
    }
}

/// Promise: after ctrl-c, the next program finds memory without data and without a mark.
#[test]
fn ctrl_c_makes_the_memory_zero_again() {
    let server = format!("{}:{}", addr(), free_port(&addr()));
    let devdax = devdax();
    let lines = format!(
        "serve() {{
            out=$(mktemp)
            $rpma serve {server} --memory {devdax} \"$@\" >$out &
            until grep -q 'listening on' $out; do sleep 0.1; done
        }}
        end() {{
            kill -INT $!
            wait $!
            tail -n 1 $out
            rm $out
        }}
        serve --overwrite
        $rpma check {server} --only transfer-gather
        end
        serve
        end"
    );
    let ended = shell(&lines).success("ctrl-c");
    found(&ended, "the bytes that were overwritten are zero again");
    // The second server has found nothing to clear.
    let last = ended.stdout.last().map_or("", String::as_str);
    assert!(last.starts_with("memory: device-DAX"), "{ended:#?}");
}

/// One signal, once it listens: a second one would end it at once.
#[test]
fn ctrl_c_ends_a_server_well() {
    let server = format!("{}:{}", addr(), free_port(&addr()));
    let lines = format!(
        "out=$(mktemp)
        $rpma serve {server} >$out &
        until grep -q 'listening on' $out; do sleep 0.1; done
        rm $out
        kill -INT $!
        wait $!"
    );
    shell(&lines).success("ctrl-c");
}
