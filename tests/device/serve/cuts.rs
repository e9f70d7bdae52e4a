//! Losses of power: the directory under every image, and the durable data when a client is
//! accepted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rpma::serve::{Directory, Layout, Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, ask_at, bytes, identity, offer};

const SLOTS: u32 = 2;
const PLATFORMS: [Platform; 3] = [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr];

/// A host with this platform.
fn on(platform: Platform) -> (Fabric, Host) {
    let (fabric, [host]) = Rig::strict().seed(1).hosts(["server"]);
    host.set_platform(platform);
    (fabric, host)
}

/// The promise of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Promise {
    is_made: bool,
    kept: Vec<Identity>,
    /// The update that is under way.
    begun: Option<Identity>,
}

impl Promise {
    /// A directory has all identities that were kept, or the one that was to follow, and no other.
    fn check(&self, found: &Result<Vec<Identity>, String>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let is_expected = !self.is_made && error.contains("has no directory");
                assert!(is_expected, "{error}");
                return;
            }
        };
        for kept in &self.kept {
            let now = found.iter().find(|found| found.key == kept.key);
            let now = now.unwrap_or_else(|| panic!("{kept:?} is lost: {found:?}"));
            assert!(now == kept || Some(*now) == self.begun, "{kept:?}: {now:?}");
        }
        for now in found {
            let is_known = self.kept.contains(now) || Some(*now) == self.begun;
            assert!(is_known, "{now:?} was never kept");
        }
    }
}

fn recover(path: &Path) -> Result<Vec<Identity>, String> {
    let memory = PmemMap::open(path, LEN).expect("the memory");
    match Directory::open(memory) {
        Ok(directory) => Ok(directory.identities().collect()),
        Err(error) => Err(error.to_string()),
    }
}

/// Promise: a directory survives every cut of the power: while it is made, while a key is new, in
/// each update, and while it is opened after a cut. Identities that were kept stay.
#[test]
fn a_directory_survives_every_cut() {
    let mut visited = 0;
    for platform in PLATFORMS {
        let (fabric, host) = on(platform);
        let (pmem, _entered) = (host.pmem("directory", LEN), host.enter());
        let promise = Mutex::new(Promise::default());
        let promised = || promise.lock().unwrap_or_else(PoisonError::into_inner);
        let run = || {
            let memory = PmemMap::open(pmem.path(), LEN).expect("the memory");
            let mut directory = Directory::create(memory, SLOTS).expect("made");
            promised().is_made = true;
            for next in [
                identity(1, 1, 10),
                identity(2, 9, 20),
                identity(1, 2, 30),
                identity(1, 3, 30),
                identity(2, u64::MAX - 1, u64::MAX),
                identity(1, 4, 10),
            ] {
                promised().begun = Some(next);
                directory.keep(next).expect("kept");
                let mut now = promised();
                now.kept.retain(|kept| kept.key != next.key);
                now.kept.push(next);
                now.begun = None;
            }
        };
        let found = fabric.find_loss_in_recovery(
            &pmem,
            || promised().clone(),
            recover,
            |promise, found| promise.check(found),
            run,
        );
        let found = found.unwrap_or_else(|loss| panic!("{platform}: {loss}"));
        visited += found.images;
    }
    assert!(visited > 1_000, "{visited} images");
}

/// The contents of the memory before a directory was made there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Zeros,
    Bytes,
    /// A directory that its program has forgotten.
    Forgotten,
}

impl Before {
    fn write(self, memory: &PmemMap) -> Result {
        memory.write_at(0, &[0; LEN])?;
        memory.persist(..)?;
        match self {
            Self::Zeros => {}
            Self::Bytes => {
                memory.write_at(0, &[0xA5; LEN])?;
                memory.persist(..)?;
            }
            Self::Forgotten => {
                let mut directory = Directory::create(memory.part(..)?, SLOTS)?;
                directory.keep(identity(7, 3, 70))?;
            }
        }
        Ok(())
    }

    fn make(self, memory: PmemMap) -> rpma::Result<Directory> {
        match self {
            Self::Zeros => Directory::open_or_create(memory, SLOTS),
            Self::Bytes => Directory::create(memory, SLOTS),
            Self::Forgotten => {
                memory.store_u64(0, 0)?;
                Directory::create(memory, SLOTS)
            }
        }
    }

    /// A start of the program after a cut: it returns the keys that it has found, or the bytes of
    /// the memory that is refused.
    fn restart(self, path: &Path) -> Result<Vec<u64>, Vec<u8>> {
        let memory = PmemMap::open(path, LEN).expect("the memory");
        match Directory::open_or_create(memory, SLOTS) {
            Ok(mut directory) => {
                let found = directory.identities().map(|found| found.key).collect();
                directory.keep(identity(1, 1, 10)).expect("kept");
                drop(directory);
                let again = PmemMap::open(path, LEN).expect("the memory");
                let again = Directory::open(again).expect("it is there");
                assert_eq!(again.get(1), Some(identity(1, 1, 10)));
                Ok(found)
            }
            Err(error) => {
                assert_says(&error, &["has no directory"]);
                Err(bytes_of(&PmemMap::open(path, LEN).expect("the memory")))
            }
        }
    }

    /// No byte was written, or the directory is there, or it is made again.
    fn check(self, is_made: bool, found: &Result<Vec<u64>, Vec<u8>>, before: &[u8]) {
        match found {
            Ok(keys) if keys.is_empty() || keys == &[1] => {}
            Ok(keys) => assert!(
                !is_made && self == Self::Forgotten && keys.contains(&7),
                "{keys:?}"
            ),
            Err(bytes) => {
                assert!(!is_made && self != Self::Zeros, "it is refused");
                assert!(bytes[8..] == before[8..], "it is refused, and begun");
            }
        }
    }
}

fn bytes_of(memory: &PmemMap) -> Vec<u8> {
    bytes(memory).expect("inside")
}

/// Promise: wherever the power is cut while a directory is made, a restart opens it or makes it
/// again. It refuses only memory in which the making has written no byte.
#[test]
fn a_directory_that_was_being_made_is_made_again() -> Result {
    let mut visited = 0;
    for platform in PLATFORMS {
        for kind in [Before::Zeros, Before::Bytes, Before::Forgotten] {
            let (fabric, host) = on(platform);
            let (pmem, _entered) = (host.pmem("directory", LEN), host.enter());
            let map = || PmemMap::open(pmem.path(), LEN).expect("the memory");
            kind.write(&map())?;
            let before = bytes_of(&map());
            let is_made = AtomicBool::new(false);
            let found = fabric.find_loss_in_recovery(
                &pmem,
                || is_made.load(Ordering::Relaxed),
                |path| kind.restart(path),
                |is_made, found| kind.check(*is_made, found, &before),
                || {
                    kind.make(map()).expect("made");
                    is_made.store(true, Ordering::Relaxed);
                },
            );
            let found = found.unwrap_or_else(|loss| panic!("{platform}, {kind:?}: {loss}"));
            visited += found.images;
        }
    }
    assert!(visited > 500, "{visited} images");
    Ok(())
}

/// The memory of these tests: two keys of a layout, of which the directory keeps these identities.
const KEPT: [(u64, u64, u64); 2] = [(1, 3, 10), (2, 5, 20)];

fn two_keys() -> Layout {
    Layout::new(SLOTS, LEN).expect("fits")
}

/// Writes a directory of two keys, and changes its bytes.
fn prepare(path: &Path, change: impl FnOnce(&PmemMap)) {
    let all = PmemMap::open(path, 0).expect("the memory");
    let mut directory = two_keys().open_directory(&all).expect("made");
    for (key, epoch, instance) in KEPT {
        let kept = directory.keep(identity(key, epoch, instance));
        kept.expect("kept");
    }
    drop(directory);
    change(&all);
    all.persist(..).expect("durable");
}

/// Runs a program under a cut of the power at each event, on each platform, with a restart.
fn every_cut<R: std::fmt::Debug>(
    change: impl Fn(&PmemMap),
    run: impl Fn(&PmemMap),
    restart: impl Fn(&PmemMap) -> R + Sync,
    check: impl Fn(bool, &R) + Sync,
) -> u64 {
    let mut visited = 0;
    for platform in PLATFORMS {
        let (fabric, host) = on(platform);
        let (pmem, _entered) = (host.pmem("memory", two_keys().len()), host.enter());
        prepare(pmem.path(), &change);
        let is_done = AtomicBool::new(false);
        let found = fabric.find_loss_in_recovery(
            &pmem,
            || is_done.load(Ordering::Relaxed),
            |path| restart(&PmemMap::open(path, 0).expect("the memory")),
            |is_done, found| check(*is_done, found),
            || {
                run(&PmemMap::open(pmem.path(), 0).expect("the memory"));
                is_done.store(true, Ordering::Relaxed);
            },
        );
        let found = found.unwrap_or_else(|loss| panic!("{platform}: {loss}"));
        visited += found.images;
    }
    visited
}

/// Promise: wherever the power is cut in a copy to a longer layout, the target is refused and the
/// copy can be repeated, or it has all keys, their bytes and the lowest epoch.
#[test]
fn a_copy_survives_every_cut() -> Result {
    const LOWEST: u64 = 9;
    const FRESH: &str = "as if the copy had never begun";
    let (old, new) = (two_keys(), Layout::new(SLOTS, 3 * LEN).expect("fits"));
    let byte = |key: u64| 0xA0 + key as u8;
    for platform in PLATFORMS {
        let (fabric, host) = on(platform);
        let (from, to) = (host.pmem("old", old.len()), host.pmem("new", new.len()));
        let _entered = host.enter();
        prepare(from.path(), |all| {
            for (key, ..) in KEPT {
                let part = old.part(key).expect("a key");
                all.write_at(part.start, &vec![byte(key); part.len()])
                    .expect("inside");
            }
        });
        old.open_directory(&PmemMap::open(from.path(), 0)?)?
            .set_lowest_epoch(LOWEST)?;
        let copy = |path: &Path| -> rpma::Result<()> {
            let target = PmemMap::open(path, 0)?;
            old.copy_to(&PmemMap::open(from.path(), 0)?, &new, &target)
        };
        let is_done = AtomicBool::new(false);
        let found = fabric.find_loss_in_recovery(
            &to,
            || is_done.load(Ordering::Relaxed),
            |path| {
                let all = PmemMap::open(path, 0).expect("the memory");
                let mut begin = [0; 8];
                all.read_at(0, &mut begin).expect("inside");
                if begin == [0; 8] {
                    return Err(FRESH.to_owned());
                }
                let directory = new.open_directory(&all);
                let directory = directory.map_err(|error| error.to_string())?;
                for (key, ..) in KEPT {
                    let mut bytes = vec![0; LEN];
                    let part = new.part(key).expect("a key");
                    all.read_at(part.start, &mut bytes).expect("inside");
                    assert!(bytes == [byte(key); LEN], "the bytes of {key}");
                }
                Ok((directory.identities().count(), directory.lowest_epoch()))
            },
            |is_done, found| match found {
                Ok(found) => assert_eq!(*found, (KEPT.len(), Some(LOWEST))),
                Err(text) => {
                    let may_go_on = text.contains("repeat Layout::copy_to") || text == FRESH;
                    assert!(!is_done && may_go_on, "{text}");
                }
            },
            || {
                copy(to.path()).expect("copied");
                is_done.store(true, Ordering::Relaxed);
            },
        );
        found.unwrap_or_else(|loss| panic!("{platform}: {loss}"));
    }
    Ok(())
}

/// Promise: wherever the power is cut while a slot is given up, it is broken still, or the lowest
/// epoch of new keys is durable. The lost key never comes back with its old epoch.
#[test]
fn a_slot_that_is_given_up_survives_every_cut() {
    const LOWEST: u64 = 9;
    // The lines contradict each other; each of them is valid by itself.
    let contradict = |all: &PmemMap| {
        let mut line = [0; 64];
        all.read_at(64 + 128, &mut line).expect("inside");
        all.write_at(64 + 128 + 64, &line).expect("inside");
    };
    let visited = every_cut(
        contradict,
        |all| {
            let mut directory = two_keys().open_directory(all).expect("opened");
            directory.give_up_slot(1, LOWEST).expect("given up");
            directory.keep(identity(2, LOWEST, 30)).expect("kept");
        },
        |all| {
            let mut directory = two_keys().open_directory(all).expect("opened");
            let is_broken = directory.broken_slots().count() == 1;
            let (lowest, kept) = (directory.lowest_epoch(), directory.get(2));
            directory.keep(identity(2, 5, 20)).expect_err("fenced");
            (is_broken, lowest, kept)
        },
        |is_done, (is_broken, lowest, kept)| {
            assert!(*is_broken || *lowest == Some(LOWEST));
            assert!(kept.is_none() || *kept == Some(identity(2, LOWEST, 30)));
            assert!(!is_done || kept.is_some());
        },
    );
    assert!(visited > 100, "{visited} images");
}

/// A server that admits one client, and the client, in threads of their own. Whenever the client
/// has learned that it was accepted, its identity is durable.
fn accepts(profile: &Profile, seed: u64) -> Result<u64, Loss> {
    let (fabric, [near, far]) = Rig::of(profile).seed(seed).hosts(["server", "client"]);
    let pmem = near.pmem("memory", 2 * LEN);
    let is_accepted = Arc::new(AtomicBool::new(false));
    let mut site = {
        let _entered = near.enter();
        Some(Site::on(&pmem, 1, &ServerCfg::new()).expect("a server"))
    };
    let check = |cut: &Cut<'_>| {
        let is_accepted = is_accepted.load(Ordering::Relaxed);
        for image in cut.images(&pmem) {
            let found = recover(image.path()).expect("a directory");
            let expected = [identity(1, 1, 10)];
            assert!(found.is_empty() || found == expected, "{found:?}");
            assert!(!is_accepted || found == expected, "accepted, and not kept");
        }
    };
    fabric.find_loss(check, || {
        let mut site = site.take().expect("once");
        let (addr, port) = (near.addr().to_string(), site.server.get_port());
        let serving = near.spawn(move || {
            loop {
                match site.next().expect("in time") {
                    Served::Asks(asked) => drop(site.admit(asked).expect("admitted")),
                    Served::Arrived(_) => {}
                    Served::Gone(_) => return,
                    other => panic!("{other:?}"),
                }
            }
        });
        let accepted = Arc::clone(&is_accepted);
        let asking = far.spawn(move || {
            let asks = offer(identity(1, 1, 10));
            let conn = ask_at((&addr, port), &asks).expect("asks");
            let conn = conn.wait_established(LIMIT).expect("accepted");
            accepted.store(true, Ordering::Relaxed);
            // A look, before which the power may fail.
            conn.get_cq().get_wc(&mut [Wc::default()]).expect("polls");
        });
        asking.join().expect("no panic");
        serving.join().expect("no panic");
    })?;
    Ok(fabric.visited().images)
}

/// Promise: key, epoch and instance are durable before the client is accepted, in every order of
/// the two programs.
#[test]
fn an_accepted_client_is_kept() {
    let mut images = 0;
    for profile in Profile::EVERY {
        for seed in 0..10 {
            let run = accepts(&profile, seed);
            images += run.unwrap_or_else(|loss| panic!("{}, {seed}: {loss}", profile.name()));
        }
    }
    assert!(images > 100, "{images}");
}
