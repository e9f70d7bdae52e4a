//! How connections end, or never begin.

mod closing;
#[path = "../common/mod.rs"]
mod common;
mod dying;
mod limits;
mod refusing;
mod settings;
mod support;
