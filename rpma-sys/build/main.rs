//! Finds the libraries, or has no work if a simulated fabric is in their place.
//!
//! The native operations that were found are handed on as metadata of the `links` key, so that a
//! dependant's build script finds `DEP_RPMA_VERBS_NATIVE_FLUSH` and
//! `DEP_RPMA_VERBS_NATIVE_ATOMIC_WRITE` (`1` or `0`). With the libraries, their versions are in
//! `DEP_RPMA_VERBS_LIBIBVERBS` (such as `1.14.56.0`) and `DEP_RPMA_VERBS_LIBRDMACM`.

#[cfg(feature = "verbs")]
mod headers;

use std::process;

/// The end of each failure: tests and a first look need no library.
const WITHOUT_LIBRARIES: &str =
    "Or build without RDMA, on a simulated fabric: `--no-default-features --features sim`";

fn main() {
    println!("cargo::rerun-if-changed=build");
    match natives() {
        Ok(natives) => natives.into_iter().for_each(|(name, found)| {
            println!("cargo::metadata={name}={}", u8::from(found));
            println!("cargo::rustc-check-cfg=cfg({name})");
            if found {
                println!("cargo::rustc-cfg={name}");
            }
        }),
        Err(reason) => {
            for line in reason.lines().chain(WITHOUT_LIBRARIES.lines()) {
                println!("cargo::error={line}");
            }
            process::exit(1);
        }
    }
}

/// The native operations, and whether the bindings have them.
fn natives() -> Result<[(&'static str, bool); 2], String> {
    let bindings = bindings()?;
    let has = |call: &str| {
        let all = bindings.as_ref();
        all.is_none_or(|text| text.contains(&format!("pub fn {call}(")))
    };
    Ok([
        ("native_flush", has("ibv_wr_flush")),
        ("native_atomic_write", has("ibv_wr_atomic_write")),
    ])
}

/// The text of the bindings; `None` if the simulator's are used, which have everything.
fn bindings() -> Result<Option<String>, String> {
    if cfg!(feature = "sim") {
        return Ok(None);
    }
    #[cfg(feature = "verbs")]
    return headers::bind().map(Some);
    #[cfg(not(feature = "verbs"))]
    Err(
        "rpma-sys needs one of its features: `verbs` (the default: libibverbs and librdmacm), or `sim` (a simulated \
         fabric, for tests)"
            .to_owned(),
    )
}
