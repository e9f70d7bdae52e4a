//! A fabric in the time of an async program with a paused clock: `Fabric::follow` and
//! `Fabric::tick`. Each test is one thread with both ends of its connections. Each runs on each
//! profile.

mod blocking;
mod cuts;
mod instants;
mod prelude;
mod refused;
mod seeds;
mod ticking;
mod world;
