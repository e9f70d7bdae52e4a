//! The memory of a server: it is zero again at the end, and data of a user is never overwritten.

use rpma::pmem::PmemMap;
use rpma::sim::Platform;

use super::world::{Result, World};
use crate::args::{Fault, Serve};
use crate::check::bench::Bench;
use crate::interrupt::Interrupt;
use crate::report::Outcome;
use crate::wire::ARENA;

/// Its requests are more than a server with the fault `dies` answers.
const WRITES: [&str; 1] = ["transfer-write"];
/// After the mark, and after the memory of a server.
const PLACES: [usize; 2] = [5000, ARENA + 5000];

/// A server whose device-DAX has room for two.
struct Memory {
    world: World,
    args: Serve,
}

impl Memory {
    fn new() -> Self {
        let world = World::new();
        world.server.set_platform(Platform::Eadr);
        let memory = world.server.pmem("dax0.0", 2 * ARENA);
        let args = Serve {
            memory: Some(memory.path().to_owned()),
            ..world.serve()
        };
        Self { world, args }
    }

    fn map<T>(&self, use_it: impl FnOnce(PmemMap) -> rpma::Result<T>) -> Result<T> {
        let _entered = self.world.server.enter();
        let path = self.args.memory.as_deref().ok_or("it has memory")?;
        Ok(use_it(PmemMap::open(path, 2 * ARENA)?)?)
    }

    fn put(&self, at: usize, bytes: &[u8]) -> Result {
        self.map(|map| map.write_at(at, bytes))
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 2 * ARENA];
        self.map(|map| map.read_at(0, &mut bytes))?;
        Ok(bytes)
    }

    fn is_zero(&self) -> Result<bool> {
        Ok(self.bytes()?.iter().all(|byte| *byte == 0))
    }

    /// The arguments of a server with so many bytes.
    fn with(&self, size: usize, overwrite: bool) -> Serve {
        Serve {
            size: size as u64,
            overwrite,
            other_is_gone: false,
            ..self.args.clone()
        }
    }

    /// A server that a client uses, and that ends well.
    fn serve(&self, args: &Serve) -> Result {
        let server = self.world.start(args)?;
        let checked = self.world.check(&WRITES)?;
        assert_eq!(checked.outcome, Outcome::Good, "{:#}", checked.report);
        Ok(server.stop()?)
    }

    /// A server that a client uses, and that ends with an error.
    fn serve_and_die(&self, args: &Serve) -> Result {
        let args = Serve {
            fault: Some(Fault::Dies),
            ..args.clone()
        };
        let server = self.world.start(&args)?;
        let checked = self.world.check(&WRITES)?;
        assert_eq!(checked.outcome, Outcome::Bad, "{:#}", checked.report);
        match server.stop() {
            Err(_) => Ok(()),
            Ok(()) => Err("it ended well".into()),
        }
    }

    /// The error of a server that does not begin.
    fn refused(&self, args: &Serve) -> Result<String> {
        let refused = self.world.start(args).err();
        let problem = refused.ok_or("it would overwrite data")?.to_string();
        assert!(problem.contains("has data"), "{problem}");
        assert!(problem.contains("add --overwrite"), "{problem}");
        Ok(problem)
    }
}

#[test]
fn a_server_without_clients_changes_nothing() -> Result {
    let memory = Memory::new();
    let server = memory.world.start(&memory.args)?;
    assert!(memory.is_zero()?);
    server.stop()?;
    assert!(memory.is_zero()?);
    memory.put(PLACES[0], b"precious")?;
    let before = memory.bytes()?;
    memory.refused(&memory.args)?;
    memory.world.start(&memory.with(ARENA, true))?.stop()?;
    assert_eq!(memory.bytes()?, before);
    Ok(())
}

/// Promise: after ctrl-c, every program accepts the memory, and a server refuses new data in it.
#[test]
fn the_memory_is_zero_again_at_the_end() -> Result {
    let memory = Memory::new();
    memory.serve(&memory.args)?;
    assert!(memory.is_zero()?);
    memory.put(PLACES[0], b"precious")?;
    memory.refused(&memory.args)?;
    Ok(())
}

/// Promise: the end of the server ends the writes of a client before the memory is cleared.
#[test]
fn the_memory_is_zero_after_an_end_in_a_session() -> Result {
    let memory = Memory::new();
    let server = memory.world.start(&memory.args)?;
    let connected = {
        let _entered = memory.world.client.enter();
        let endpoint = memory.world.endpoint();
        Bench::connect(&endpoint, false, &Interrupt::default())
    };
    let bench = connected.map_err(|stop| format!("{stop:?}"))?;
    assert!(!memory.is_zero()?);
    server.stop()?;
    assert!(memory.is_zero()?);
    drop(bench);
    Ok(())
}

/// Promise: after a kill, the next server overwrites the bytes of the one before, and no others.
#[test]
fn a_mark_permits_the_bytes_of_its_server() -> Result {
    let memory = Memory::new();
    memory.serve_and_die(&memory.args)?;
    assert!(!memory.is_zero()?);
    memory.put(PLACES[1], b"precious")?;
    memory.refused(&memory.with(2 * ARENA, false))?;
    memory.serve(&memory.args)?;
    let bytes = memory.bytes()?;
    assert_eq!(&bytes[PLACES[1]..][..8], b"precious");
    assert!(bytes[..ARENA].iter().all(|byte| *byte == 0));
    Ok(())
}

/// Promise: a mark that `--overwrite` permitted counts no byte of a user, even after a kill.
#[test]
fn overwritten_data_is_zero_before_the_mark_counts_it() -> Result {
    let memory = Memory::new();
    let last = 2 * ARENA - 8;
    memory.serve_and_die(&memory.args)?;
    for at in [PLACES[1], last] {
        memory.put(at, b"precious")?;
    }
    let all = memory.with(2 * ARENA, true);
    memory.serve_and_die(&all)?;
    let bytes = memory.bytes()?;
    assert_eq!(bytes[last..], [0; 8]);
    // The mark counts all of it.
    memory.serve(&memory.with(2 * ARENA, false))?;
    assert!(memory.is_zero()?);
    Ok(())
}

/// Promise: a smaller server does not forget the bytes of a larger one.
#[test]
fn a_smaller_server_keeps_the_mark_of_a_larger_one() -> Result {
    let memory = Memory::new();
    let larger = memory.with(2 * ARENA, false);
    memory.serve_and_die(&larger)?;
    memory.put(PLACES[1], b"of the larger server")?;
    memory.serve(&memory.args)?;
    assert!(!memory.is_zero()?);
    // Without a client: ctrl-c alone clears it.
    memory.world.start(&larger)?.stop()?;
    assert!(memory.is_zero()?);
    Ok(())
}

/// Promise: bytes that only look like a mark are data.
#[test]
fn a_mark_without_its_bytes_is_data() -> Result {
    for mark in [
        &b"overwritten by rpma serve"[..],
        b"overwritten by rpma serve\x08\0\0\0\0\0\0\0",
        b"Overwritten by rpma serve\0\0\x10\0\0\0\0\0",
    ] {
        let memory = Memory::new();
        memory.put(0, mark)?;
        memory.refused(&memory.args)?;
    }
    Ok(())
}
