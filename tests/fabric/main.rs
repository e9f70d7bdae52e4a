//! Tests that need the simulated fabric: its faults, its time, its losses of power, and its
//! guarantees.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/looking.rs"]
mod looking;

mod cm_events;
mod explored;
mod fabrics;
mod floods;
mod follow;
mod hostile;
mod iwarp;
mod links;
mod on_thread;
mod order;
mod power;
mod replicas;
mod replicated_log;
mod shifted;
mod stalls;
mod standing;
mod storm;
mod strict;
mod sweep;
mod threads;
