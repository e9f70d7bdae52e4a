#![no_main]

#[path = "../../tests/fabric/hostile/bytes.rs"]
mod bytes;
#[path = "../../tests/fabric/hostile/replica.rs"]
mod replica;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let first = replica::run(bytes);
    assert_eq!(first, replica::run(bytes), "a run differs from the one before");
});
