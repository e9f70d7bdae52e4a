//! The faults of the example `replicated-log`, by the names of `--break`, and the test that finds
//! each. `cargo sim-log` has this table as well.

/// A fault, and a test of `tests/fabric/replicated_log`.
pub(crate) const FOUND_BY: [(&str, &str); 21] = [
    ("visible", "cuts::faults_of_commits_are_found"),
    ("platform", "cuts::faults_of_commits_are_found"),
    ("posted", "cuts::faults_of_commits_are_found"),
    ("tail-ahead", "cuts::faults_of_commits_are_found"),
    (
        "room-early",
        "cuts::room_is_used_again_after_the_truncation",
    ),
    ("one-copy", "scenes::one_copy_is_not_enough"),
    ("unknown-is-done", "scenes::one_copy_is_not_enough"),
    (
        "reads-one",
        "scenes::a_replica_that_was_away_is_not_the_newest",
    ),
    ("blank-counts", "scenes::a_replaced_replica_is_no_witness"),
    ("ignores-epochs", "scenes::the_newer_epoch_wins"),
    ("keeps-epoch", "scenes::the_newer_epoch_wins"),
    ("tells-early", "scenes::an_open_log_is_on_two_replicas"),
    ("no-recount", "scenes::an_open_log_is_on_two_replicas"),
    ("same-instance", "scenes::a_higher_epoch_takes_over"),
    ("joins-early", "scenes::a_replica_joins_while_others_append"),
    (
        "joins-ungated",
        "scenes::a_replica_joins_while_others_append",
    ),
    ("trusts-words", "scenes::a_visible_head_is_made_durable"),
    ("header-first", "scenes::a_writer_dies_while_replicas_join"),
    ("no-set-back", "scenes::a_writer_dies_while_replicas_join"),
    (
        "list-in-place",
        "replace_cuts::the_power_fails_at_each_event",
    ),
    ("ignores-lists", "replace::an_old_list_opens_no_log"),
];

/// A fault, and the first scene of the crate `rpma-scenes` that finds it (`tests/scenes`).
pub(crate) const FOUND_BY_SCENE: [(&str, &str); 39] = [
    ("visible", "partition"),
    ("platform", "partition"),
    ("posted", "was-away"),
    ("tail-ahead", "laps"),
    ("room-early", "room"),
    ("one-copy", "was-away"),
    ("unknown-is-done", "partition"),
    ("reads-one", "was-away"),
    ("blank-counts", "replaced"),
    ("ignores-epochs", "newer-writer"),
    ("keeps-epoch", "newer-writer"),
    ("tells-early", "unknown-stays"),
    ("joins-early", "unknown-stays"),
    ("joins-ungated", "frozen-writer"),
    ("header-first", "frozen-writer"),
    ("no-set-back", "other-records"),
    ("head-last", "laps-behind"),
    ("takes-place", "after-unknown"),
    ("keeps-old", "counts-no-more"),
    ("takes-back", "back-in-change"),
    ("no-joint-list", "frozen-writer"),
    ("ignores-lists", "frozen-writer"),
    ("reads-old-list", "old-list"),
    ("finishes-early", "cut-change"),
    ("list-in-place", "laps-behind"),
    ("lost-wake-up", "together"),
    ("counts-more", "together"),
    ("keeps-count", "returns-empty"),
    ("drops-only", "frozen-writer"),
    ("keeps-older", "laps"),
    ("makes-anew", "replaced"),
    ("forgets-at-once", "forgets-again"),
    ("loses-empty", "lengths"),
    ("no-length", "damage"),
    ("trusts-records", "writer-dies-replacing"),
    ("gives-up", "minutes-away"),
    ("counts-again", "counts-once"),
    ("counts-shown", "shows-again"),
    ("takes-no-room", "more-waits"),
];

/// The variable that names one fault. The tests find all of them without it.
pub(crate) const BREAK: &str = "RPMA_LOG_BREAK";
