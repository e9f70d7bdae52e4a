//! [`Pace`]: when operations begin.
//!
//! A closed loop begins an operation when an earlier one has completed. So a server that stands
//! still also stops the measurement, and few operations see it. An open loop has a time for each
//! operation, and measures from that time: the operations that could not begin count as well.

/// When the operations of a connection begin. Times are nanoseconds from the begin of the run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    Closed,
    Open {
        /// When the first operation is due.
        first: f64,
        /// The time between two operations.
        interval: f64,
    },
}

impl Pace {
    /// The pace of one of `lanes` connections, which take turns. `rate` is that of all, in
    /// operations a second.
    pub(super) fn new(rate: Option<f64>, lane: u32, lanes: u32) -> Self {
        match rate {
            None => Self::Closed,
            Some(rate) => Self::Open {
                first: f64::from(lane) * 1e9 / rate,
                interval: f64::from(lanes) * 1e9 / rate,
            },
        }
    }

    /// When the operation of this number is due. In a closed loop each one is due at once.
    pub(super) fn due(&self, number: u64) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Open { first, interval } => (first + interval * number as f64) as u64,
        }
    }

    /// The first number that is not due before this time.
    pub(super) fn first_from(&self, time: u64) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Open { first, interval } => {
                ((time as f64 - first) / interval).ceil().max(0.0) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_take_turns_at_the_rate_of_all() {
        let (first, second) = (Pace::new(Some(1e6), 0, 2), Pace::new(Some(1e6), 1, 2));
        let due: Vec<u64> = (0..3).flat_map(|n| [first.due(n), second.due(n)]).collect();
        assert_eq!(due, [0, 1000, 2000, 3000, 4000, 5000]);
    }

    /// Promise: no error adds up, also at a rate whose interval is no whole number.
    #[test]
    fn a_day_of_operations_takes_a_day() {
        let pace = Pace::new(Some(3e6), 0, 1);
        let day = 86_400_000_000_000;
        assert!(pace.due(86_400 * 3_000_000).abs_diff(day) < 1000);
    }

    #[test]
    fn the_operations_before_a_time_are_known_by_number() {
        let pace = Pace::new(Some(1e9 / 7.0), 1, 2);
        for time in [0, 6, 7, 8, 20, 21, 22, 1_000_003] {
            let number = pace.first_from(time);
            assert!(pace.due(number) >= time, "{time}");
            assert!(number == 0 || pace.due(number - 1) < time, "{time}");
        }
    }
}
