//! The messages between `rpma serve` and `rpma check`.
