//! Finds libibverbs and librdmacm with pkg-config, generates the bindings and compiles the `static
//! inline` verbs.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// libibverbs carries the version of rdma-core as its second and third number.
const MIN_VERBS: &str = "1.14.44";

/// The library that holds the compiled `static inline` functions.
const INLINE_LIB: &str = "rpma_sys_inline";

/// Writes the bindings to cargo's directory, and returns them.
pub(crate) fn bind() -> Result<String, String> {
    println!("cargo::rerun-if-changed=wrapper.h");
    let include_paths = find_libraries()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let bindings = generate(&include_paths, &out)?;
    compile_inlines(&include_paths, &out)?;
    Ok(bindings)
}

/// Where the headers are. pkg-config's own variables (`PKG_CONFIG_PATH`, `PKG_CONFIG_LIBDIR`,
/// `PKG_CONFIG_SYSROOT_DIR`) select another rdma-core than the system's.
fn find_libraries() -> Result<Vec<PathBuf>, String> {
    let mut include_paths = Vec::new();
    for (name, min, debian, fedora) in [
        ("libibverbs", MIN_VERBS, "libibverbs-dev", "rdma-core-devel"),
        ("librdmacm", "1.3", "librdmacm-dev", "rdma-core-devel"),
    ] {
        let library =
            pkg_config::Config::new().atleast_version(min).probe(name).map_err(|error| {
                format!(
                    "{name} {min} or newer was not found through pkg-config. Install it: on Debian and Ubuntu \
                     `apt-get install {debian} pkg-config`, on Fedora and RHEL `dnf install {fedora} pkgconf-pkg-config`.\n\
                     pkg-config said: {error}"
                )
            })?;
        println!("cargo::metadata={name}={}", library.version);
        include_paths.extend(library.include_paths);
    }
    let system = PathBuf::from("/usr/include");
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h"] {
        let dirs = include_paths.iter().chain([&system]);
        // A newer rdma-core may have more.
        for path in dirs
            .map(|dir| dir.join(header))
            .filter(|path| path.exists())
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    include_paths.sort();
    include_paths.dedup();
    Ok(include_paths)
}

fn generate(include_paths: &[PathBuf], out: &Path) -> Result<String, String> {
    let builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(include_paths.iter().map(|path| format!("-I{}", path.display())))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_function("ibv_.*|rdma_.*|rpma_sys_.*")
        .allowlist_type("ibv_.*|rdma_.*")
        .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
        // Declared publicly, exported only as a private symbol of libibverbs.
        .blocklist_function("ibv_wr_opcode_str")
        // Bound through rpma_sys_… instead (see wrapper.h).
        .blocklist_function("ibv_get_device_list|ibv_query_port|ibv_reg_mr|ibv_reg_mr_iova")
        // libc has these, and the crate's users pass libc's.
        .blocklist_type("sockaddr.*|sa_family_t|timespec|in_addr|in6_addr|pthread_.*|__pthread.*")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, timespec};")
        .opaque_type("_compat_ibv_port_attr")
        // A value that a newer library or kernel invents must stay a number: as a Rust enum it
        // would be undefined behaviour.
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join(INLINE_LIB))
        .derive_debug(true)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true);

    // bindgen panics where libclang is missing.
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
    let _ = panic::take_hook();
    let bindings = match generated {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => {
            return Err(format!(
                "bindgen could not read the verbs headers: {error}\n\
                 If a standard header such as stddef.h is missing, install a C compiler and libclang's headers: \
                 on Debian and Ubuntu `apt-get install gcc libc6-dev libclang-dev`."
            ));
        }
        Err(panic) => {
            let reason = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no reason given");
            return Err(format!(
                "bindgen could not start, most likely because libclang is not installed. Install it: on Debian and Ubuntu \
                 `apt-get install libclang-dev`, on Fedora and RHEL `dnf install clang-devel`.\n\
                 bindgen said: {reason}"
            ));
        }
    };

    let text = bindings.to_string();
    let path = out.join("bindings.rs");
    std::fs::write(&path, &text).map_err(|error| format!("writing {}: {error}", path.display()))?;
    Ok(text)
}

fn compile_inlines(include_paths: &[PathBuf], out: &Path) -> Result<(), String> {
    let manifest_dir =
        env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo did not set CARGO_MANIFEST_DIR")?;
    cc::Build::new()
        .file(out.join(INLINE_LIB).with_extension("c"))
        .include(manifest_dir)
        .includes(include_paths)
        .warnings(false)
        .opt_level(2)
        .try_compile(INLINE_LIB)
        .map_err(|error| {
            format!(
                "the static inline verbs could not be compiled. A C compiler is needed: on Debian and Ubuntu \
                 `apt-get install gcc libc6-dev`, on Fedora and RHEL `dnf install gcc`.\n\
                 cc said: {error}"
            )
        })
}
