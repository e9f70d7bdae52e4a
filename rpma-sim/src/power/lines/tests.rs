use super::super::memory::Owner;
use super::*;

/// The flow of each write of a device.
const FLOW: Flow = Flow::Writes(17);

/// Stores of a heartbeat: more than [`MOST`] by far. Miri takes a second for two.
const BEATS: u64 = if cfg!(miri) { 4 * MOST as u64 } else { 1000 };

/// Random choices of outcomes. Miri takes more than a minute for each.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 100 };

fn store(memory: &Memory, at: usize, bytes: &[u8]) {
    let part = Part {
        address: memory.as_ptr().wrapping_add(at),
        len: bytes.len(),
    };
    memory::copy(bytes, part);
}

/// A store to a line while a device writes beside it is not taken for the device's, nor
/// forgotten.
#[test]
fn a_store_beside_a_device_write_is_found() {
    let memory = Memory::new(&Store::zeros(4096), Owner::Image);
    let mut lines = Lines::new(Platform::AdrDdioOff, false, Store::zeros(4096));
    assert!(!lines.look(&memory));
    // Between the look and the end of the device's write.
    store(&memory, 8, &[2; 8]);
    store(&memory, 0, &[1; 4]);
    let writer = device();
    lines.placed(&memory, &(0..4), writer);
    assert!(lines.look(&memory));
    lines.write_back(&(0..16));
    assert_eq!(lines.durable().line(0)[..16], [[0; 8], [2; 8]].concat());
    lines.push(FLOW, None);
    assert_eq!(lines.durable().line(0)[..8], [1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(lines.pending().count(), 0);
}

/// A word that is written again and again and never flushed costs no more with each time, and
/// both ends of its history stay possible.
#[test]
fn a_heartbeat_is_bounded() {
    let memory = Memory::new(&Store::zeros(4096), Owner::Image);
    let mut lines = Lines::new(Platform::AdrDdioOn, true, Store::zeros(4096));
    for number in 1..=BEATS {
        store(&memory, 0, &number.to_ne_bytes());
        let writer = device();
        lines.placed(&memory, &(0..8), writer);
        lines.landed(FLOW, &(0..8));
    }
    assert_eq!(lines.writes_to(0).len(), MOST);
    let (outcomes, is_all) = lines.outcomes(0, &mut Random::new(1));
    assert!(!is_all);
    let numbers: Vec<u64> = outcomes
        .iter()
        .map(|line| u64::from_ne_bytes(line[..8].try_into().expect("8 bytes")))
        .collect();
    assert!(
        [0, BEATS - 1, BEATS]
            .iter()
            .all(|number| numbers.contains(number))
    );
}

fn device() -> Writer {
    Writer::Device {
        flow: FLOW,
        what: String::new(),
    }
}

/// Two writers that write to one line in turns cost no more than one.
#[test]
fn two_heartbeats_are_bounded() {
    let memory = Memory::new(&Store::zeros(4096), Owner::Image);
    let mut lines = Lines::new(Platform::AdrDdioOn, true, Store::zeros(4096));
    for number in 1..=BEATS {
        store(&memory, 0, &number.to_ne_bytes());
        lines.placed(&memory, &(0..8), device());
        lines.landed(FLOW, &(0..8));
        store(&memory, 8, &number.to_ne_bytes());
        lines.look(&memory);
    }
    assert!(
        lines.writes_to(0).len() <= 2 * MOST,
        "{}",
        lines.writes_to(0).len()
    );
}

/// Data that was in the cache before a store is there with the store, however many stores came
/// later.
#[test]
fn merging_keeps_the_order() {
    let memory = Memory::new(&Store::zeros(4096), Owner::Image);
    let mut lines = Lines::new(Platform::AdrDdioOn, false, Store::zeros(4096));
    store(&memory, 0, &[7; 8]);
    lines.placed(&memory, &(0..8), device());
    store(&memory, 56, &[1; 8]);
    lines.look(&memory);
    lines.push(FLOW, None);
    // The flag, after the visible bytes; then other bytes.
    store(&memory, 8, &[1; 8]);
    lines.look(&memory);
    for number in 2..40 {
        store(&memory, 56, &[number; 8]);
        lines.look(&memory);
    }
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (outcomes, _) = lines.outcomes(0, &mut random);
        for image in outcomes.into_iter().chain([lines.outcome(0, &mut random)]) {
            assert!(image[8] == 0 || image[0] == 7, "a flag without its record");
        }
    }
}
