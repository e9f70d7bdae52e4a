//! A server that keeps memory and an epoch for each key: its admissions, their order, and its
//! refusals with their words.

#[cfg(feature = "sim")]
mod again;
#[cfg(feature = "sim")]
mod answering;
mod asking;
mod bad_input;
mod broken;
mod commits;
#[cfg(feature = "sim")]
mod cuts;
#[cfg(not(feature = "sim"))]
mod day;
#[cfg(feature = "sim")]
mod failing;
mod many;
mod one;
mod parts;
mod places;
mod rules;
#[cfg(feature = "sim")]
mod silent;
pub(crate) mod support;
mod whole;
#[cfg(feature = "sim")]
mod writers;
