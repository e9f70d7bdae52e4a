//! The scenes: each is a promise, and a run that breaks it if the log has a fault.

mod calls;
mod copies;
mod damage;
mod faults;
mod fills;
mod joins;
mod network;
mod power;
mod replaces;
mod servers;
mod unknowns;
mod writers;

use crate::stage::Stage;
use crate::subject::{Ability, Subject};

/// A scene.
pub(crate) struct Scene<S: Subject> {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) needs: &'static [Ability],
    pub(crate) play: fn(&Stage<S>),
}

/// All of them, in the order in which they are played: short ones first.
pub(crate) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    let mut all = servers::scenes();
    all.extend(writers::scenes());
    all.extend(network::scenes());
    all.extend(calls::scenes());
    all.extend(joins::scenes());
    all.extend(fills::scenes());
    all.extend(replaces::scenes());
    all.extend(damage::scenes());
    all.extend(power::scenes());
    all.extend(unknowns::scenes());
    all.extend(copies::scenes());
    all.extend(faults::scenes());
    all
}
