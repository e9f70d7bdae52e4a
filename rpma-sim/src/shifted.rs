//! Faults that have only shifted the order. A call that fails, or a request that is sent again,
//! also changes which thread goes on when. A program that depends on the order then fails, and the
//! fault is not the cause.

use std::any::Any;

use crate::fabric::Fabric;
use crate::order::{Chances, Turns};
use crate::power::{is_alike, quietly};
use crate::profile::Profile;

#[derive(Default)]
struct Choices {
    turns: Turns,
    chances: Chances,
}

impl Choices {
    /// The same choices, for a run with other steps.
    fn again(&self) -> Self {
        Self {
            turns: Turns::like(&self.turns),
            chances: Chances::like(&self.chances),
        }
    }
}

/// A run that has failed without a fault.
pub(crate) struct Shifted {
    pub(crate) panic: Box<dyn Any + Send>,
    /// Where its order differs from that of the seed.
    pub(crate) difference: String,
}

/// Runs a program on a fabric, with faults or without. `true` is with them.
pub(crate) type Run<'a> = &'a dyn Fn(&Fabric, bool) -> std::thread::Result<()>;

/// Repeats a run that has failed with a fault, without that fault and with the same choices.
/// Returns the failure, if it fails.
pub(crate) fn without_the_fault(profile: &Profile, run: Run<'_>) -> Option<Shifted> {
    let (_, made) = quietly(|| kept(profile, Choices::default(), |fabric| run(fabric, true)));
    let (ended, shifted) = kept(profile, made.again(), |fabric| run(fabric, false));
    let panic = ended.err()?;
    let (_, usual) = quietly(|| kept(profile, Choices::default(), |fabric| run(fabric, false)));
    Some(Shifted {
        panic,
        difference: difference(&shifted, &usual),
    })
}

/// As [`without_the_fault`], if it fails in the same way.
pub(crate) fn fails_alike(
    profile: &Profile,
    run: Run<'_>,
    failed: &(dyn Any + Send),
) -> Option<Shifted> {
    let shifted = quietly(|| without_the_fault(profile, run))?;
    is_alike(failed, &*shifted.panic).then_some(shifted)
}

/// Runs with these choices, and keeps those that were made.
fn kept(
    profile: &Profile,
    choices: Choices,
    run: impl FnOnce(&Fabric) -> std::thread::Result<()>,
) -> (std::thread::Result<()>, Choices) {
    let fabric = Fabric::seeded(profile.clone(), 1);
    let shared = fabric.shared();
    shared.order.keep(choices.turns);
    shared.order.choices.keep(choices.chances);
    let ended = run(&fabric);
    let choices = Choices {
        turns: shared.order.kept(),
        chances: shared.order.choices.kept(),
    };
    (ended, choices)
}

fn difference(shifted: &Choices, usual: &Choices) -> String {
    let turns = shifted.turns.difference(&usual.turns);
    let difference = turns.or_else(|| shifted.chances.difference(&usual.chances));
    difference.unwrap_or_else(|| "the order is that of the seed".to_owned())
}
