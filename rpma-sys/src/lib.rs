//! Raw bindings to libibverbs and librdmacm (rdma-core 44 or newer) for the `rpma` crate.
//!
//! They are generated from the installed headers when the crate is built. With the feature `sim` the
//! names are those of a simulated fabric, `rpma-sim`, as far as `rpma` needs them, and a build needs
//! no header, C compiler or library.
//!
//! * The `static inline` functions of `verbs.h` are bound through C functions that bindgen generates,
//!   so their semantics are the header's own.
//! * Four names are macros that bindgen cannot see. Use `rpma_sys_get_device_list`,
//!   `rpma_sys_query_port`, `rpma_sys_reg_mr` and `rpma_sys_reg_mr_iova`. The exported functions with
//!   the macros' names have older semantics and are not bound.
//! * C enums are newtypes, so a value that is unknown to this version stays a number.
//! * Native flush (`ibv_wr_flush`) exists from rdma-core 45 on, and native atomic write
//!   (`ibv_wr_atomic_write`) from 44 on. A dependant's build script finds
//!   `DEP_RPMA_VERBS_NATIVE_FLUSH` and `DEP_RPMA_VERBS_NATIVE_ATOMIC_WRITE`, each `1` or `0`.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(missing_docs, clippy::all, unknown_lints, unnecessary_transmutes)]

#[cfg(not(feature = "sim"))]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

#[cfg(feature = "sim")]
pub use rpma_sim::verbs::*;

#[cfg(feature = "sim")]
pub use rpma_sim as sim;
