//! [`Point`]: the result of a setting. A file of results has one on each line, as JSON.

use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::settings::{Measured, Setting};

/// In each line, so that other files are refused.
pub(crate) const FORMAT: &str = "rpma perf";
/// The version of the lines. It changes if a field goes or gets another meaning.
pub(crate) const VERSION: u32 = 1;

/// The result of a setting, with both hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// [`FORMAT`].
    pub(crate) format: String,
    pub(crate) version: u32,
    /// Whether the devices are simulated. The times are then those of the simulator's work.
    pub(crate) simulated: bool,
    /// When the run began, in UTC. All points of a run have the same.
    pub(crate) began: String,
    pub(crate) client: Host,
    pub(crate) servers: Vec<Host>,
    pub(crate) setting: Setting,
    pub(crate) result: Measured,
    /// Why the measurement ended before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_early: Option<String>,
}
