//! The names of example 06's clients.

/// The size of the memory that holds a name. It ends with a zero.
pub(crate) const SIZE: usize = 32;

const NAMES: [&str; 13] = [
    "Andy", "Chet", "Derek", "Janek", "Kacper", "Lukasz", "Oksana", "Pawel", "Piotr", "Tomasz",
    "Xiang", "Xiaoran", "Xiaoyan",
];

/// The name that librpma's client chooses with this seed, where the C library is glibc.
pub(crate) fn of_seed(seed: u64) -> &'static str {
    let seed = (seed % u64::from(u32::MAX)) as u32;
    NAMES[first_rand(seed) as usize % NAMES.len()]
}

/// The first result of glibc's `rand` after `srand(seed)`, an additive feedback generator with
/// x³¹ + x³ + 1.
fn first_rand(seed: u32) -> u32 {
    // The state is filled by a multiplicative generator modulo 2³¹ − 1.
    let mut word = if seed == 0 { 1 } else { seed as i32 };
    let mut state = [0; 31];
    for entry in &mut state {
        *entry = word as u32;
        word = (i64::from(word) * 16807).rem_euclid((1 << 31) - 1) as i32;
    }
    // The first 310 values are thrown away.
    let mut value = 0;
    for n in 3..=3 + 310 {
        value = state[n % 31].wrapping_add(state[(n - 3) % 31]);
        state[n % 31] = value;
    }
    value >> 1
}
