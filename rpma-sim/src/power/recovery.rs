//! Recoveries that lose their power, too.

use std::collections::BTreeMap;
use std::path::Path;

use super::cut::{Cut, Loss, Visited};
use super::pmem::Pmem;
use crate::fabric::{Fabric, Host};

/// From so many images recoveries are cut; of more, every second one or fewer.
const ORIGINS: usize = 1000;

/// Where a recovery begins.
struct Origin<P> {
    /// What the program had promised when it lost its power and left this image.
    promises: Vec<P>,
    /// The event, for people.
    event: String,
}

impl Fabric {
    /// Runs a program and cuts the power at every event of it, and then at every event of each recovery.
    ///
    /// `recover` is the program's own recovery. It opens the memory at the path, mends it, and returns what it has found.
    /// `check` panics if that breaks the promise: `promise` returns what the program has promised by now. The recovery
    /// runs from each image that the program may leave; its power is cut at each of its events; and it runs again from
    /// each image that this may leave. So a recovery that is not idempotent is found.
    ///
    /// Equal images are recovered once. Recoveries are cut from at most 1,000 images of the program.
    ///
    /// `recover` runs under the lock of a fabric at times: it may use the map of its path, and nothing else of rpma
    /// ([`on_every_event`](Self::on_every_event)).
    ///
    /// # Errors
    ///
    /// The first check that fails.
    ///
    /// # Panics
    ///
    /// As [`find_loss`](Self::find_loss).
    pub fn find_loss_in_recovery<P: Clone + PartialEq + Send + Sync, R>(
        &self,
        pmem: &Pmem,
        promise: impl Fn() -> P + Sync,
        recover: impl Fn(&Path) -> R + Sync,
        check: impl Fn(&P, &R) + Sync,
        run: impl FnOnce(),
    ) -> Result<Visited, Loss> {
        let mut origins: BTreeMap<Vec<u8>, Origin<P>> = BTreeMap::new();
        let first = |cut: &Cut<'_>| {
            let promised = promise();
            for image in cut.images(pmem) {
                let bytes = image.bytes().to_vec();
                check(&promised, &recover(image.path()));
                let origin = origins.entry(bytes).or_insert_with(|| Origin {
                    promises: Vec::new(),
                    event: format!("event {}, {}", cut.event(), cut.what()),
                });
                if !origin.promises.contains(&promised) {
                    origin.promises.push(promised.clone());
                }
            }
        };
        self.find_loss(first, run)?;
        let mut visited = self.visited();
        let step = origins.len().div_ceil(ORIGINS).max(1);
        let mut known: BTreeMap<Vec<u8>, Vec<P>> = BTreeMap::new();
        for (bytes, origin) in origins.iter().step_by(step) {
            let (fabric, host) = self.another(pmem);
            let memory = host.pmem_filled("memory", bytes);
            let _entered = host.enter();
            let again = |cut: &Cut<'_>| {
                for image in cut.images(&memory) {
                    let known = known.entry(image.bytes().to_vec()).or_default();
                    let new = |promise: &&P| !known.contains(promise);
                    let promises: Vec<P> = origin.promises.iter().filter(new).cloned().collect();
                    if promises.is_empty() {
                        continue;
                    }
                    let found = recover(image.path());
                    promises.iter().for_each(|promise| check(promise, &found));
                    known.extend(promises);
                }
            };
            let recovered = fabric.find_loss(again, || recover(memory.path()));
            recovered.map_err(|loss| loss.of_recovery(&origin.event))?;
            let more = fabric.visited();
            visited.add(more);
        }
        Ok(visited)
    }

    /// A fabric with a host like that of a memory.
    fn another(&self, pmem: &Pmem) -> (Fabric, Host) {
        let (name, profile, platform) = pmem.kind_of_host();
        let fabric = Fabric::new(profile);
        let host = fabric.host(&name);
        host.set_platform(platform);
        (fabric, host)
    }
}
