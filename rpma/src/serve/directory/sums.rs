//! The sums of a directory whose bytes were changed: no fuzzer finds them by itself.

use super::header::Header;
use super::line::{LINE, checksum};
use super::tail::lowest_records;
use super::{Directory, place, tail_of};

/// The bytes of a line that its sum covers.
const SUMMED: usize = 32;

impl Directory {
    /// Makes the sums right: of the header, of each line that is not zeros, and of the lowest epoch.
    pub(crate) fn make_sums_right(memory: &mut [u8]) {
        let slots = u32::from_le_bytes(memory[12..16].try_into().expect("4 bytes"));
        Header::sum(&mut memory[..LINE]);
        'slots: for slot in 0..slots {
            for line in [0, 1] {
                let at = place(slot, line);
                let Some(bytes) = memory.get_mut(at..at + LINE) else {
                    break 'slots;
                };
                if *bytes != [0; LINE] {
                    let sum = checksum(&[&bytes[..SUMMED], &slot.to_le_bytes()]);
                    bytes[SUMMED..][..8].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }
        let Some(tail) = memory
            .get_mut(tail_of(slots)..)
            .filter(|it| it.len() >= LINE)
        else {
            return;
        };
        for place in [0, 1] {
            let (at, _) = lowest_records(0)[place];
            let epoch = u64::from_le_bytes(tail[at..at + 8].try_into().expect("8 bytes"));
            if epoch != 0 {
                let (_, record) = lowest_records(epoch)[place];
                tail[at..at + record.len()].copy_from_slice(&record);
            }
        }
    }
}
