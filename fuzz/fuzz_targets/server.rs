#![no_main]

#[path = "../../tests/fabric/hostile/bytes.rs"]
mod bytes;
#[path = "../../tests/fabric/hostile/server.rs"]
mod server;
#[path = "../../tests/fabric/hostile/stranger.rs"]
mod stranger;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let first = server::run(bytes);
    assert_eq!(first, server::run(bytes), "a run differs from the one before");
});
