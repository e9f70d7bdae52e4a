//! The bytes of records in which a part of another record, or of no record, shows.

/// Bytes of which each is 7 more than the one before it.
static BYTES: [u8; 4096] = bytes();

const fn bytes() -> [u8; 4096] {
    let mut bytes = [1; 4096];
    let mut at = 1;
    while at < bytes.len() {
        bytes[at] = (bytes[at - 1] as usize + 7) as u8;
        at += 1;
    }
    bytes
}

/// The record of this number. Its bytes are a part of a table, because sweeps compare each image
/// with records: some hundred thousand times.
pub(crate) fn record<const LEN: usize>(number: u64) -> &'static [u8; LEN] {
    let start = number as usize * 41 % 256;
    BYTES[start..][..LEN].try_into().expect("so long")
}
