//! [`World`]: the hosts of a scene, the servers on them, and the judge.

use std::any::Any;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rpma::sim::{AtStep, Fabric, Host, Platform, Pmem};

use crate::acts::Acts;
use crate::exec::{self, Handle};
use crate::model::Model;
use crate::subject::{Server, Shape, Subject};

const PORT: u16 = 7204;
/// Longer than a server needs until it listens.
const STARTS: Duration = Duration::from_millis(10);
/// Longer than the network needs for the requests of an append.
const SETTLES: Duration = Duration::from_secs(2);

/// Longer than a server that comes back needs until it has all records.
pub(crate) const RETURNS: Duration = Duration::from_secs(30);

/// Ends a scene, without the message of a panic: the report has the text.
pub(crate) fn fail(why: String) -> ! {
    resume_unwind(Box::new(why))
}

/// The text of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a server's host.
pub(crate) fn name(n: usize) -> String {
    format!("server-{n}")
}

pub(crate) fn names(servers: &[usize]) -> String {
    let names: Vec<_> = servers.iter().map(|n| name(*n)).collect();
    match names.is_empty() {
        true => "no server".to_owned(),
        false => names.join(", "),
    }
}

/// A server of the log.
struct Slot {
    host: Host,
    pmem: Pmem,
    /// How many memories it had.
    memories: u32,
    serving: Option<Handle<()>>,
    /// The scene wants its program to run.
    is_wanted: bool,
    /// The result of its program, if that has ended nevertheless.
    result: Option<String>,
}

impl Slot {
    fn new(
        (fabric, platform): (&Fabric, Platform),
        n: usize,
        pmem: impl FnOnce(&Host) -> Pmem,
    ) -> Self {
        let host = fabric.host(&name(n));
        host.set_platform(platform);
        Self {
            pmem: pmem(&host),
            host,
            memories: 1,
            serving: None,
            is_wanted: false,
            result: None,
        }
    }
}

struct Inner<S: Subject> {
    subject: Arc<S>,
    shape: Shape,
    fabric: Fabric,
    platform: Platform,
    client: Host,
    servers: Mutex<Vec<Slot>>,
    model: Mutex<Model>,
    acts: Mutex<Acts>,
    /// The panics before the scene has ended a program for the first time.
    first_panics: OnceLock<Vec<String>>,
    /// The epoch of the last writer.
    epoch: AtomicU64,
    /// The place of the first server of [`all`](World::all).
    turn: usize,
}

pub(crate) struct World<S: Subject>(Arc<Inner<S>>);

impl<S: Subject> Clone for World<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Subject> Drop for Inner<S> {
    fn drop(&mut self) {
        // So the threads of the programs end, also after a panic.
        let servers = self
            .servers
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for slot in servers.iter().filter(|slot| slot.serving.is_some()) {
            if slot.host.has_power() {
                slot.host.kill();
            }
        }
    }
}

impl<S: Subject> World<S> {
    /// Hosts whose memories have these contents, or are empty.
    pub(crate) fn new(
        subject: &Arc<S>,
        fabric: &Fabric,
        platform: Platform,
        memories: Option<&[Vec<u8>]>,
    ) -> Self {
        let shape = subject.shape();
        let count = memories.map_or(shape.servers, <[_]>::len);
        fabric.keep_panics();
        // Seeds begin with 1.
        let turn = fabric
            .seed()
            .map_or(0, |seed| seed.saturating_sub(1) as usize);
        let slot = |n: usize| {
            let pmem = |host: &Host| match memories {
                Some(memories) => host.pmem_filled("log", &memories[n]),
                None => host.pmem("log", shape.memory),
            };
            Slot::new((fabric, platform), n, pmem)
        };
        Self(Arc::new(Inner {
            client: fabric.host("writer"),
            servers: Mutex::new((0..count).map(slot).collect()),
            subject: Arc::clone(subject),
            model: Mutex::new(Model::new(shape.servers)),
            shape,
            fabric: fabric.clone(),
            platform,
            acts: Mutex::default(),
            first_panics: OnceLock::new(),
            epoch: AtomicU64::new(0),
            turn,
        }))
    }

    /// The model of another world: of the one that has left these memories.
    pub(crate) fn with_model(self, model: Model, epoch: u64) -> Self {
        *self.model() = model;
        self.0.epoch.store(epoch, Ordering::Relaxed);
        self
    }

    pub(crate) fn subject(&self) -> &S {
        &self.0.subject
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.0.shape
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    pub(crate) fn platform(&self) -> Platform {
        self.0.platform
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        locked(&self.0.model)
    }

    pub(crate) fn acts(&self) -> MutexGuard<'_, Acts> {
        locked(&self.0.acts)
    }

    /// The acts until now, for a report.
    pub(crate) fn course(&self) -> String {
        let model = self.model();
        self.acts().text(&model)
    }

    /// The acts until now, and the records of each server.
    pub(crate) fn course_and_records(&self) -> String {
        let (model, pmems) = (self.model(), self.pmems());
        let memories = pmems.iter().map(Pmem::bytes_quietly).enumerate();
        let records = memories.map(|(n, memory)| {
            let records = model.records_in(&memory);
            format!("\n    {}: {records}", name(n))
        });
        let (course, records) = (self.acts().text(&model), String::from_iter(records));
        format!("{course}\nThe records whose bytes are in the memories at the end:{records}")
    }

    /// The same, if these are recoveries from an image.
    pub(crate) fn course_of_recovery(&self) -> String {
        let model = self.model();
        self.acts().of_recovery(&model)
    }

    pub(crate) fn first_panics(&self) -> &OnceLock<Vec<String>> {
        &self.0.first_panics
    }

    pub(crate) fn last_epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn next_epoch(&self) -> u64 {
        self.0.epoch.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The next writer has this epoch, which is higher than those before.
    pub(crate) fn skip_to_epoch(&self, epoch: u64) {
        self.0.epoch.store(epoch - 1, Ordering::Relaxed);
    }

    /// The host of the usual writer.
    pub(crate) fn client(&self) -> &Host {
        &self.0.client
    }

    pub(crate) fn list(&self) -> Vec<usize> {
        self.model().servers().to_vec()
    }

    /// The numbers of all servers of the log, turned by the seed: so each has each part of a scene.
    pub(crate) fn all(&self) -> Vec<usize> {
        let mut all = self.list();
        let turn = self.0.turn % all.len();
        all.rotate_left(turn);
        all
    }

    /// The numbers of all hosts of servers: also of those that have no place in the log.
    fn slots(&self) -> std::ops::Range<usize> {
        0..locked(&self.0.servers).len()
    }

    /// Servers that are enough for a writer, from one of them on in a circle. In a change they are so
    /// before and after it.
    pub(crate) fn enough(&self, first: usize) -> Vec<usize> {
        let mut all = self.model().lists().concat();
        all.sort_unstable();
        all.dedup();
        let Shape { servers, .. } = self.0.shape;
        let count = all.len() - (servers - self.0.shape.quorum());
        let from = first % all.len();
        all.into_iter().cycle().skip(from).take(count).collect()
    }

    /// So many servers are too few for a durable record.
    pub(crate) fn few(&self) -> usize {
        self.0.shape.copies - 1
    }

    /// So many servers may be away.
    pub(crate) fn spare(&self) -> usize {
        self.0.shape.servers - self.0.shape.copies
    }

    /// The first servers, as many as are enough for a new writer.
    pub(crate) fn first(&self) -> Vec<usize> {
        self.all()[..self.0.shape.quorum()].to_vec()
    }

    pub(crate) fn last_one(&self) -> usize {
        *self.all().last().expect("a log has a server")
    }

    /// The last servers, as many as are enough for a new writer.
    pub(crate) fn last(&self) -> Vec<usize> {
        let all = self.all();
        all[all.len() - self.0.shape.quorum()..].to_vec()
    }

    pub(crate) fn host(&self, n: usize) -> Host {
        locked(&self.0.servers)[n].host.clone()
    }

    pub(crate) fn pmems(&self) -> Vec<Pmem> {
        let servers = locked(&self.0.servers);
        servers.iter().map(|slot| slot.pmem.clone()).collect()
    }

    /// Where the last durable record lies in a memory.
    pub(crate) fn last_place(&self) -> Option<usize> {
        let record = self.model().kept().pop()?;
        let place = |pmem: &Pmem| {
            let memory = pmem.bytes();
            memory
                .windows(record.len())
                .position(|bytes| bytes == record)
        };
        self.pmems().iter().find_map(place)
    }

    /// Lets time pass. Only a second or more is an act, so that pauses of a load are none.
    pub(crate) async fn sleep(&self, time: Duration) {
        if time >= Duration::from_secs(1) {
            self.acts().does(format!("the scene waits for {time:?}"));
        }
        exec::sleep(S::BLOCKS, time).await;
    }

    /// Lets the requests of the last calls arrive everywhere. It is no act, as most scenes begin so.
    pub(crate) async fn settle(&self) {
        exec::sleep(S::BLOCKS, SETTLES).await;
    }

    pub(crate) fn spawn<F>(&self, host: &Host, task: F) -> Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        exec::spawn(S::BLOCKS, host, task)
    }

    pub(crate) fn addr(&self, n: usize) -> SocketAddr {
        (self.host(n).addr(), PORT).into()
    }

    /// Lets these servers run, and no others. One that has ended is started again.
    pub(crate) async fn only(&self, up: &[usize]) {
        for n in self.slots() {
            match up.contains(&n) {
                true => self.begin(n).await,
                false => self.kill(n).await,
            }
        }
        self.sleep(STARTS).await;
    }

    /// Starts the program of a server.
    pub(crate) async fn start(&self, n: usize) {
        self.begin(n).await;
        self.sleep(STARTS).await;
    }

    async fn begin(&self, n: usize) {
        if self.is_serving(n) {
            return;
        }
        self.kill(n).await;
        let (host, addr) = (self.host(n), self.addr(n));
        if !host.has_power() {
            host.restart();
        }
        let server = {
            let pmem = &locked(&self.0.servers)[n].pmem;
            Server {
                addr,
                path: pmem.path().to_owned(),
                len: pmem.len(),
                number: n,
                host: host.clone(),
            }
        };
        self.acts().does(format!("{} starts at {addr}", name(n)));
        let subject = Arc::clone(&self.0.subject);
        self.wants(n, true);
        // The task is not to keep the world, which ends it.
        let world = Arc::downgrade(&self.0);
        let serving = self.spawn(&host, async move {
            let result = subject.serve(server).await;
            if let Some(world) = world.upgrade() {
                Self(world).returns(n, result.map_err(|error| error.to_string()));
            }
        });
        locked(&self.0.servers)[n].serving = Some(serving);
    }

    fn wants(&self, n: usize, is_wanted: bool) {
        let slot = &mut locked(&self.0.servers)[n];
        (slot.is_wanted, slot.result) = (is_wanted, None);
    }

    /// The program of a server has returned.
    fn returns(&self, n: usize, result: Result<(), String>) {
        if !self.host(n).has_power() || !locked(&self.0.servers)[n].is_wanted {
            return;
        }
        let result =
            result.map_or_else(|error| format!("an error ({error})"), |()| "Ok".to_owned());
        self.acts()
            .does(format!("`serve` returns {result} on {}", name(n)));
        locked(&self.0.servers)[n].result = Some(result);
    }

    /// The servers whose programs have returned, although the scene wants them to run.
    pub(crate) fn results(&self) -> Vec<(usize, String)> {
        let servers = locked(&self.0.servers);
        let result = |(n, slot): (usize, &Slot)| Some((n, slot.result.clone()?));
        servers.iter().enumerate().filter_map(result).collect()
    }

    /// The servers whose programs run.
    pub(crate) fn serving(&self) -> Vec<usize> {
        self.slots().filter(|n| self.is_serving(*n)).collect()
    }

    /// Whether the program of a server runs.
    pub(crate) fn is_serving(&self, n: usize) -> bool {
        let slot = &locked(&self.0.servers)[n];
        slot.serving
            .as_ref()
            .is_some_and(|serving| !serving.is_finished())
    }

    /// Whether a server has a connection.
    pub(crate) fn is_connected(&self, n: usize) -> bool {
        let objects = self.host(n).objects();
        objects.get("qp").is_some_and(|count| *count > 0)
    }

    /// Ends the program of a server. Its memory has all bytes that were written.
    pub(crate) async fn kill(&self, n: usize) {
        let serving = locked(&self.0.servers)[n].serving.take();
        let Some(serving) = serving else { return };
        self.wants(n, false);
        self.acts().does(format!("{} ends", name(n)));
        let host = self.host(n);
        self.ends_programs();
        if host.has_power() {
            host.kill();
        }
        serving.end().await;
    }

    /// Cuts the power of a server.
    pub(crate) async fn cut(&self, n: usize) {
        let host = self.host(n);
        self.wants(n, false);
        if host.has_power() {
            self.cut_power(n);
        }
        let serving = locked(&self.0.servers)[n].serving.take();
        if let Some(serving) = serving {
            serving.end().await;
        }
    }

    fn cut_power(&self, n: usize) {
        self.ends_programs();
        self.host(n).power_cut();
        let left = self.pmems()[n].bytes_quietly();
        self.acts().cuts(n, left);
    }

    pub(crate) async fn cut_all(&self) {
        for n in self.slots() {
            self.cut(n).await;
        }
    }

    /// Another server, with empty memory, which has no place in the log. Returns its number.
    pub(crate) fn add_server(&self) -> usize {
        let Inner {
            fabric, platform, ..
        } = &*self.0;
        let mut servers = locked(&self.0.servers);
        let (n, len) = (servers.len(), self.0.shape.memory);
        let pmem = |host: &Host| host.pmem("log", len);
        servers.push(Slot::new((fabric, *platform), n, pmem));
        n
    }

    /// A server gets empty memory.
    pub(crate) async fn refill(&self, n: usize) {
        self.kill(n).await;
        self.acts().does(format!("{} gets empty memory", name(n)));
        let host = self.host(n);
        if !host.has_power() {
            host.restart();
        }
        let memories = locked(&self.0.servers)[n].memories + 1;
        let pmem = host.pmem(&format!("log-{memories}"), self.0.shape.memory);
        let slot = &mut locked(&self.0.servers)[n];
        (slot.memories, slot.pmem) = (memories, pmem);
    }

    /// Cuts the power of a server at a step of the fabric.
    pub(crate) fn cut_at(&self, step: u64, n: usize) -> AtStep {
        let (world, host) = (self.clone(), self.host(n));
        self.0.fabric.at_step(step, move || {
            if host.has_power() {
                world.cut_power(n);
            }
        })
    }

    /// Ends all programs of the usual writer's host at a step of the fabric.
    pub(crate) fn kill_writer_at(&self, step: u64) -> AtStep {
        let world = self.clone();
        let kill = move || world.kill_writers(world.client());
        self.0.fabric.at_step(step, kill)
    }

    pub(crate) fn freeze_writer(&self) {
        self.acts().does("the writer's host freezes".to_owned());
        self.0.client.freeze();
    }

    pub(crate) fn thaw_writer(&self) {
        self.acts().does("the writer's host thaws".to_owned());
        self.0.client.thaw();
    }

    /// Ends all programs of a host of writers. Their tasks are ended by the scene.
    pub(crate) fn kill_writers(&self, host: &Host) {
        if host.has_power() {
            self.acts()
                .does("the writer's host ends its programs".to_owned());
            self.ends_programs();
            host.kill();
        }
    }

    /// Ends all servers.
    pub(crate) async fn stop(&self) {
        self.only(&[]).await;
    }
}
