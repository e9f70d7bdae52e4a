//! A directory that has lost a slot: its server goes on with the keys that are there.

use rpma::serve::{Directory, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, directory_of, identity, new_directory};

/// Promise: while a slot is broken, the other keys are served. The fenced writer of the lost key is
/// not admitted: neither before the operator's word, nor after it, nor after a restart.
#[test]
fn the_writer_of_a_lost_key_stays_fenced() -> Result {
    let _test = device_test();
    let all = PmemMap::open(devdax(), 4 * LEN)?;
    let mut directory = new_directory(directory_of(&all)?, 3)?;
    directory.keep(identity(1, 5, 10))?;
    directory.keep(identity(2, 5, 10))?;
    drop(directory);
    // The lines of the second key.
    all.write_at(64 + 128, &[0xA5; 128])?;
    all.persist(..LEN)?;
    let site = |all: &PmemMap| {
        let directory = Directory::open(directory_of(all)?)?;
        Site::over(2, &ServerCfg::new(), all.part(..)?, directory)
    };
    {
        let mut site = site(&all)?;
        let _served = site.client(identity(1, 6, 20))?;
        for epoch in [4, 5, 100] {
            let words = "may be that of the broken slot 1: Directory::give_up_slot";
            site.refused(identity(2, epoch, 10), RefusalCode::Refused, 0, words)?;
        }
    }
    let mut directory = Directory::open(directory_of(&all)?)?;
    directory.give_up_slot(1, 9)?;
    drop(directory);
    for _ in 0..2 {
        let mut site = site(&all)?;
        for epoch in [4, 5, 8] {
            let words = "has an epoch below 9";
            site.refused(identity(2, epoch, 10), RefusalCode::OldEpoch, 8, words)?;
        }
    }
    let mut site = site(&all)?;
    let _served = site.client(identity(2, 9, 30))?;
    Ok(())
}
