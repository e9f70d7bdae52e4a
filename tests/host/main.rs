//! Tests of the project itself: its pages, its names and its index. They need no device.

#[path = "../common/failed.rs"]
mod failed;

mod errors;
mod floors;
#[cfg(feature = "verbs")]
mod linking;
mod links;
mod names;
mod pages;
mod places;
