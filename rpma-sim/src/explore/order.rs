//! An order of a run, as text and as its deviations.

use std::fmt;
use std::str::FromStr;

use crate::choices::Kind;

/// The variable that has the only order of an exploration.
pub(crate) const ONLY: &str = "RPMA_SIM_ORDER";

/// The kinds of choices that an exploration makes, by their names.
pub(crate) const KINDS: [(Kind, &str); 14] = [
    (Kind::Arrival, "arrival"),
    (Kind::Poll, "poll"),
    (Kind::Answer, "answer"),
    (Kind::Overtake, "overtake"),
    (Kind::Fetch, "fetch"),
    (Kind::Bytes, "bytes"),
    (Kind::Visibility, "visibility"),
    (Kind::Landing, "landing"),
    (Kind::Delay, "delay"),
    (Kind::Loss, "loss"),
    (Kind::Packets, "packets"),
    (Kind::Stray, "stray"),
    (Kind::Notify, "notify"),
    (Kind::Thread, "thread"),
];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        let found = KINDS.into_iter().find(|(kind, _)| *kind == self);
        found.map_or("weight", |(_, name)| name)
    }

    pub(crate) fn is_of_threads(self) -> bool {
        matches!(self, Self::Thread | Self::Notify)
    }
}

/// The option of an arrival that lasts for longer than one post. The late base order has none.
const LASTING: u32 = 3;

/// One choice of a run that is not the first option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deviation {
    /// The number of the choice.
    pub(crate) at: u32,
    pub(crate) kind: Kind,
    pub(crate) option: u32,
}

impl Deviation {
    /// Whether it changes later choices as well, so that it is tried alone.
    pub(crate) fn lasts(self) -> bool {
        self.kind == Kind::Arrival && self.option == LASTING
    }
}

/// All that a run depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Each posted operation arrives late.
    pub(crate) is_late: bool,
    /// By their numbers.
    pub(crate) deviations: Vec<Deviation>,
}

impl Order {
    pub(crate) fn of_threads(&self) -> usize {
        let deviations = self.deviations.iter();
        deviations.filter(|it| it.kind.is_of_threads()).count()
    }

    pub(crate) fn lasts(&self) -> bool {
        self.deviations.iter().any(|it| it.lasts())
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_late { "late" } else { "early" })?;
        for Deviation { at, kind, option } in &self.deviations {
            write!(f, "; {at} {} {option}", kind.name())?;
        }
        Ok(())
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{ONLY} has {text:?}, and not `early` or `late`, and deviations with the number of a choice, its kind \
                 and an option, as in \"early; 12 arrival 1\""
            )
        };
        let mut parts = text.split(';').map(str::trim);
        let mut order = Self {
            is_late: match parts.next() {
                Some("late") => true,
                Some("early") => false,
                _ => return Err(wrong()),
            },
            ..Self::default()
        };
        for part in parts {
            let words: Vec<&str> = part.split_whitespace().collect();
            match words[..] {
                [at, kind, option] => {
                    let kind = KINDS.into_iter().find(|(_, name)| *name == kind);
                    order.deviations.push(Deviation {
                        at: at.parse().map_err(|_| wrong())?,
                        kind: kind.ok_or_else(wrong)?.0,
                        option: option.parse().ok().filter(|it| *it > 0).ok_or_else(wrong)?,
                    });
                }
                _ => return Err(wrong()),
            }
        }
        if order.deviations.is_sorted_by(|one, next| one.at < next.at) {
            Ok(order)
        } else {
            Err(wrong())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An order is written as it is read.
    #[test]
    fn an_order_comes_back_from_its_text() {
        for text in [
            "early",
            "late",
            "early; 12 arrival 1",
            "late; 3 thread 2; 40 visibility 1",
        ] {
            let order: Order = text.parse().expect("an order");
            assert_eq!(order.to_string(), text);
        }
        for text in [
            "",
            "soon",
            "early; 12",
            "early; 12 weight 1",
            "early; 12 arrival 0",
            "early; 12 arrival 1; 12 poll 1",
        ] {
            text.parse::<Order>().expect_err("no order");
        }
    }
}
