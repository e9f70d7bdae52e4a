//! Device tests on a simulated fabric: each has its own, with one host that has two devices.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use std::{env, thread};

use rpma::sim::{Entered, Fabric, Host, Nic, Pmem, Profile};

use super::failed::after_error;
use super::is_iwarp;
use super::rig::Rig;

/// The fabric, the hosts and the memory of a test.
struct Fixture {
    fabric: Fabric,
    host: Host,
    other: Nic,
    dax: OnceCell<Pmem>,
}

thread_local! {
    static FIXTURE: RefCell<Option<Rc<Fixture>>> = const { RefCell::new(None) };
}

fn fixture() -> Rc<Fixture> {
    let fixture = FIXTURE.with_borrow(Option::clone);
    fixture.expect("device_test comes first, in this thread")
}

/// The IPv4 address of the device.
pub(crate) fn addr() -> String {
    let host = Host::current().expect("a thread of a test begins with `here`");
    host.addr().to_string()
}

/// The IPv6 address of the device.
pub(crate) fn addr6() -> String {
    fixture().host.addr6().to_string()
}

/// An IPv4 address of another RDMA device of this host.
pub(crate) fn other_addr() -> String {
    fixture().other.addr().to_string()
}

/// Persistent memory, where a device-DAX is.
pub(crate) fn devdax() -> String {
    let fixture = fixture();
    let dax = fixture
        .dax
        .get_or_init(|| fixture.host.pmem("dax0.0", 4 << 20));
    dax.path().to_str().expect("text").to_owned()
}

/// No test that needs one runs here.
pub(crate) fn fsdax() -> String {
    unreachable!("there is no DAX file system on a simulated fabric")
}

/// A directory on an ordinary file system.
pub(crate) fn ext4() -> String {
    let directory = env::temp_dir();
    directory.to_str().expect("text").to_owned()
}

/// The fabric of this test.
pub(crate) fn with_fabric<T>(run: impl FnOnce(&Fabric, &Host) -> T) -> T {
    let fixture = fixture();
    run(&fixture.fabric, &fixture.host)
}

/// Makes writes visible that have completed, if this is a thread of a test.
pub(crate) fn settle() {
    if let Some(fixture) = FIXTURE.with_borrow(Option::clone) {
        fixture.fabric.settle();
    }
}

/// Puts the work of a thread of a test on the test's host.
pub(crate) fn here<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let host = Host::current().expect("device_test comes first");
    move || {
        let _entered = host.enter();
        run()
    }
}

/// The devices that this run is about: `RPMA_SIM_PROFILE` is `rxe-6.12` (also if it is not set),
/// `rxe-6.1`, `strict`, `adapter` or `siw-6.12`.
pub(crate) fn profile() -> Profile {
    match env::var("RPMA_SIM_PROFILE").as_deref() {
        Err(_) | Ok("rxe-6.12") => Profile::RXE_6_12,
        Ok("rxe-6.1") => Profile::RXE_6_1,
        Ok("strict") => Profile::STRICT,
        Ok("adapter") => Profile::ADAPTER,
        Ok("siw-6.12") => Profile::SIW_6_12,
        Ok(other) => {
            panic!("RPMA_SIM_PROFILE is {other}: rxe-6.12, rxe-6.1, strict, adapter or siw-6.12?")
        }
    }
}

/// Runs a test on a fabric of its own, if it is not on one already.
pub(crate) fn on_fabric<T>(test: impl FnOnce() -> T) -> T {
    let _fabric = Placed::new();
    test()
}

/// A test is on its fabric while this lives.
struct Placed {
    /// This is the one that has made the fabric.
    entered: Option<Entered>,
}

impl Placed {
    fn new() -> Self {
        if FIXTURE.with_borrow(Option::is_some) {
            return Self { entered: None };
        }
        let fabric = Rig::new().fabric();
        let host = fabric.host("here");
        let other = host.add_nic();
        let entered = Some(host.enter());
        FIXTURE.set(Some(Rc::new(Fixture {
            fabric,
            host,
            other,
            dax: OnceCell::new(),
        })));
        Self { entered }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.entered.is_some() {
            FIXTURE.set(None);
        }
    }
}

/// The number of objects is as expected when this is dropped, also if the test has failed.
#[must_use = "objects are counted when it is dropped"]
pub(crate) struct Counted {
    expected: Objects,
    _fabric: Placed,
}

impl Counted {
    /// So many objects more are left, of each kind.
    pub(crate) fn leaving(left: &[(&str, u64)]) -> Self {
        let fabric = Placed::new();
        let mut expected = objects();
        for (kind, count) in left {
            let mut kinds = ["pd", "mr", "cq", "srq", "qp", "cm_id"].into_iter();
            let kind = kinds.find(|known| known == kind).expect("a kind");
            *expected.entry(kind).or_default() += *count as usize;
        }
        Self {
            expected,
            _fabric: fabric,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !thread::panicking() {
            let left = settled(objects, &self.expected);
            assert_eq!(left, self.expected, "objects leak{}", after_error());
        }
    }
}

/// The number of objects, which is to become `expected`. On iWARP the threads free some that made
/// the calls of connections which were dropped before their answers.
pub(crate) fn settled(objects: impl Fn() -> Objects, expected: &Objects) -> Objects {
    // A call may go on for longer than two minutes.
    let until = rpma::sim::now() + Duration::from_secs(140);
    let mut pause = Duration::from_millis(1);
    loop {
        let left = objects();
        if left == *expected || !is_iwarp() || rpma::sim::now() > until {
            return left;
        }
        rpma::sim::sleep(pause);
        pause = (2 * pause).min(Duration::from_secs(10));
    }
}

/// How many objects of each kind there are.
pub(crate) type Objects = BTreeMap<&'static str, usize>;

/// The kernel does not count completion channels, so a test cannot either. (tests/fabric/sweep
/// counts them.)
fn objects() -> Objects {
    let mut objects = fixture().fabric.objects();
    objects.remove("comp_channel");
    objects
}
