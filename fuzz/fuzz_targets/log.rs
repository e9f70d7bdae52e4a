#![no_main]

#[path = "../../tests/fabric/hostile/bytes.rs"]
mod bytes;
#[path = "../../tests/fabric/hostile/log.rs"]
mod log;
#[path = "../../tests/fabric/hostile/stranger.rs"]
mod stranger;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let first = log::run(bytes);
    assert_eq!(first, log::run(bytes), "a run differs from the one before");
});
