//! The only module with `unsafe`: references into the blocks of a pool ([`blocks`]), and the
//! descriptor that tokio watches ([`descriptor`]).

mod blocks;
#[cfg(feature = "tokio")]
mod descriptor;

pub(crate) use self::blocks::{Blocks, Common, Exclusive};
#[cfg(feature = "tokio")]
pub(crate) use self::descriptor::watch;
