//! Wrong programs that an exploration finds, and the right program beside them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rpma::sim::{Explore, FailedOrder};

use crate::common::prelude::*;
use crate::common::share;

type Program = Box<dyn Fn(&Fabric)>;

/// A right program, and wrong ones beside it.
pub(crate) struct Case {
    profiles: Vec<Profile>,
    right: Program,
    wrong: Vec<Wrong>,
}

struct Wrong {
    /// The devices on which it breaks its promise.
    profiles: Vec<Profile>,
    fault: &'static str,
    /// A part of the text of its panic.
    text: &'static str,
    program: Program,
}

impl Case {
    pub(crate) fn new(profiles: &[Profile], right: impl Fn(&Fabric) + 'static) -> Self {
        Self {
            profiles: profiles.to_vec(),
            right: Box::new(right),
            wrong: Vec::new(),
        }
    }

    pub(crate) fn wrong(
        self,
        fault: &'static str,
        text: &'static str,
        program: impl Fn(&Fabric) + 'static,
    ) -> Self {
        let profiles = self.profiles.clone();
        self.wrong_on(&profiles, fault, text, program)
    }

    /// On other devices it keeps its promise.
    pub(crate) fn wrong_on(
        mut self,
        profiles: &[Profile],
        fault: &'static str,
        text: &'static str,
        program: impl Fn(&Fabric) + 'static,
    ) -> Self {
        self.wrong.push(Wrong {
            profiles: profiles.to_vec(),
            fault,
            text,
            program: Box::new(program),
        });
        self
    }

    /// The right program passes in all orders with up to one deviation, on a share of the devices.
    /// Each wrong one breaks its promise in one of them, on each of its devices.
    pub(crate) fn check(&self) {
        let what = self.wrong[0].fault;
        let some = share(what, self.profiles.len(), &self.profiles);
        some.into_iter().for_each(|profile| self.passes(profile));
        self.wrong.iter().for_each(Wrong::is_found);
    }

    /// The same, with the right program on all devices.
    pub(crate) fn check_everywhere(&self) {
        self.profiles
            .iter()
            .for_each(|profile| self.passes(profile));
        self.wrong.iter().for_each(Wrong::is_found);
    }

    fn passes(&self, profile: &Profile) {
        let explored = explore(profile).run(&self.right);
        println!("{}, the right one: {explored}", profile.name());
        let ended = (explored.diverged, explored.stopped);
        assert_eq!(ended, (0, None), "{explored}");
    }

    /// A cell of `table.md`: a figure for each device, or for two of four.
    fn cell(&self, figure: impl Fn(&Profile) -> String) -> String {
        let profiles = match self.profiles.len() {
            4 => &[Profile::RXE_6_12, Profile::STRICT],
            _ => &self.profiles[..],
        };
        let figures: Vec<_> = profiles.iter().map(figure).collect();
        figures.join(", ")
    }

    /// The first two columns of the lines of `table.md`.
    pub(crate) fn heads(&self) -> Vec<String> {
        let devices = self.cell(|profile| format!("`{}`", setting(profile)));
        let heads = self.wrong.iter();
        heads
            .map(|wrong| format!("| {} | {devices} |", wrong.fault))
            .collect()
    }

    /// The lines of `table.md`.
    pub(crate) fn rows(&self) -> Vec<String> {
        let row = |(head, wrong): (String, &Wrong)| {
            let run = self.cell(|profile| match wrong.found(profile) {
                Some(found) => found.explored.runs().to_string(),
                None => "none".to_owned(),
            });
            let [seeds, apart] = [false, true]
                .map(|is_apart| self.cell(|profile| wrong.of_seeds(profile, is_apart).to_string()));
            format!("{head} {run} | {seeds} | {apart} |")
        };
        self.heads().into_iter().zip(&self.wrong).map(row).collect()
    }
}

impl Wrong {
    fn is_found(&self) {
        for profile in &self.profiles {
            let (name, fault, began) = (profile.name(), self.fault, Instant::now());
            let found = self.found(profile);
            let found = found.unwrap_or_else(|| panic!("{name}, {fault}: it is not found"));
            let (runs, order, took) = (found.explored.runs(), &found.order, began.elapsed());
            println!("{name}, {fault}: run {runs}, {took:?}, in the order {order}");
            found.deviations.iter().for_each(|it| println!("    {it}"));
        }
    }

    fn found(&self, profile: &Profile) -> Option<Box<FailedOrder>> {
        let found = explore(profile).find(&self.program).err()?;
        assert!(found.text.contains(self.text), "{}: {found}", self.fault);
        assert!(found.deviations.len() <= 1, "{found}");
        Some(found)
    }

    /// How many of 100 seeds find it.
    fn of_seeds(&self, profile: &Profile, is_apart: bool) -> usize {
        let fails = |seed: &u64| {
            let fabric = Rig::of(profile).seed(*seed).fabric();
            if is_apart {
                fabric.apart();
            }
            catch_unwind(AssertUnwindSafe(|| (self.program)(&fabric))).is_err()
        };
        (1..=100).filter(fails).count()
    }
}

/// The value of `RPMA_SIM_PROFILE`.
fn setting(profile: &Profile) -> &'static str {
    match *profile {
        Profile::RXE_6_12 => "rxe-6.12",
        Profile::RXE_6_1 => "rxe-6.1",
        Profile::STRICT => "strict",
        _ => "adapter",
    }
}

fn explore(profile: &Profile) -> Explore {
    Explore::new(profile)
        .deviations(1)
        .limit(Duration::from_secs(600))
}
