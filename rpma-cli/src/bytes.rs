//! The bytes that a check writes, and their checksum.

/// Bytes in which a shifted, repeated or missing part shows. The top bit of each byte is the lowest
/// bit of the seed, so every byte differs between an even and an odd seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    const TOP: u64 = 0x8080_8080_8080_8080;
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        let top = if seed & 1 == 0 { 0 } else { TOP };
        bytes.extend((next(&mut state) & !TOP | top).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A step of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let bits = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// The checksum of some bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    crc32c::crc32c(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the check finds each byte that was not written, because it differs.
    #[test]
    fn patterns_of_an_even_and_an_odd_seed_differ_in_each_byte() {
        let (even, odd) = (pattern(2, 1000), pattern(3, 1000));
        assert!(even.iter().zip(&odd).all(|(a, b)| a != b));
        assert_ne!(pattern(2, 1000), pattern(4, 1000));
        assert_eq!(pattern(2, 13), pattern(2, 1000)[..13]);
        assert!(pattern(2, 0).is_empty());
    }

    /// Promise: the check finds a byte that differs, and a part that is too short or too long.
    #[test]
    fn one_byte_changes_the_checksum() {
        let bytes = pattern(1, 67);
        let sum = checksum(&bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(checksum(&other), sum, "byte {at}");
            assert_ne!(checksum(&bytes[..at]), sum);
        }
        assert_ne!(checksum(&[&bytes[..], &[0]].concat()), sum);
    }
}
