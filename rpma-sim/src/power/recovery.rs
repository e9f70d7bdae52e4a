//! Recoveries that lose their power, too.

use std::collections::BTreeMap;
use std::path::Path;

use super::cut::{Cut, Loss, Visited};
use super::pmem::Pmem;
use super::store::Store;
use crate::fabric::{Fabric, Host};

/// From so many images recoveries are cut; of more, every second one or fewer.
const ORIGINS: usize = 1000;

/// A promise of a program that lost its power and left an image.
struct Promised<P> {
    promise: P,
    /// The event.
    number: u64,
    what: String,
}

impl Fabric {
    /// Runs a program and cuts the power at every event of it, and then at every event of each
    /// recovery.
    ///
    /// `recover` is the program's own recovery. It opens the memory at the path, mends it, and
    /// returns its findings. `check` panics if the findings break a promise. `promise` returns the
    /// promises that the program has made until now. The recovery runs from each image that the
    /// program may leave. The power is cut at each event of the recovery. Then the recovery runs
    /// again from each image that this cut may leave. So the call finds a recovery that is not
    /// idempotent. `rpma::sim` has an example.
    ///
    /// Equal images count once. The power is cut in the recoveries from at most 1,000 images of the
    /// program.
    ///
    /// With [`RPMA_SIM_EVENT`](Self::on_every_event) the recoveries begin with the images of that
    /// event of the program, and lose their power at each of their own events.
    ///
    /// `recover` runs under the lock of a fabric at times: it may use the map of its path, and no
    /// other object of rpma ([`on_every_event`](Self::on_every_event)).
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
        let mut origins: BTreeMap<Store, Vec<Promised<P>>> = BTreeMap::new();
        let first = |cut: &Cut<'_>| {
            let promised = promise();
            for image in cut.images(pmem) {
                let store = image.store().clone();
                check(&promised, &recover(image.path()));
                let promises = origins.entry(store).or_default();
                if !promises.iter().any(|known| known.promise == promised) {
                    promises.push(Promised {
                        promise: promised.clone(),
                        number: cut.event(),
                        what: cut.what().to_owned(),
                    });
                }
            }
        };
        self.find_loss(first, run)?;
        let mut visited = self.visited();
        let step = origins.len().div_ceil(ORIGINS).max(1);
        let mut known: BTreeMap<Store, Vec<P>> = BTreeMap::new();
        for (store, promises) in origins.iter().step_by(step) {
            let (fabric, host) = self.another(pmem);
            let memory = host.pmem_of("memory", store.clone());
            let _entered = host.enter();
            // The promise that the first failure breaks.
            let mut broken = None;
            let again = |cut: &Cut<'_>| {
                for image in cut.images(&memory) {
                    let known = known.entry(image.store().clone()).or_default();
                    let new = |promised: &&Promised<P>| !known.contains(&promised.promise);
                    let new: Vec<&Promised<P>> = promises.iter().filter(new).collect();
                    if new.is_empty() {
                        continue;
                    }
                    // After a failure this is called again, for the report.
                    let had_failed = broken.is_some();
                    broken = broken.or(new.first().copied());
                    let found = recover(image.path());
                    for promised in &new {
                        if !had_failed {
                            broken = Some(*promised);
                        }
                        check(&promised.promise, &found);
                    }
                    if !had_failed {
                        broken = None;
                    }
                    known.extend(new.iter().map(|promised| promised.promise.clone()));
                }
            };
            let recovered = fabric.find_loss_at(None, again, || recover(memory.path()));
            recovered.map_err(|loss| {
                let origin = broken.unwrap_or(&promises[0]);
                let loss = loss.of_recovery(origin.number, &origin.what);
                loss.with_files(&self.shared().order)
            })?;
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
