//! How connections end, or never begin.

mod closing;
mod dying;
mod limits;
mod refusing;
mod settings;
mod support;
