//! Records that wait for copies, while servers go and come back.

use std::time::Duration;

use super::Scene;
use super::joins::{counts_again, was_away};
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Returns};
use crate::subject::Subject;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![Scene {
        name: "minutes-away",
        promise: "A server that was away for minutes counts as a copy again.",
        needs: &[GoesOn, Returns],
        play: minutes_away,
    }]
}

/// Longer than a log tries to connect before it reports an error.
const AWAY: Duration = Duration::from_secs(150);

fn minutes_away<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 10), async |world| {
        let (last, writer) = was_away(world).await;
        world.acts().does(format!("{AWAY:?} pass"));
        world.sleep(AWAY).await;
        world.start(last).await;
        counts_again(world, writer).await;
    });
}
