//! Faults of the simulated network and of hosts, as a program sees them: requests are lost, delayed
//! or kept back, and devices stand still. Each test runs on each profile.

mod buffers;
mod connecting;
mod delays;
mod faults;
mod frozen;
mod partitions;
mod prelude;
mod receives;
mod resent;
mod waits;
mod world;
