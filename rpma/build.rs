//! Turns the findings of rpma-sys in the headers into cfgs, and the pages of `docs/` into pages of
//! the crate's documentation.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["native_flush", "native_atomic_write"] {
        println!("cargo::rustc-check-cfg=cfg({name})");
        let variable = format!("DEP_RPMA_VERBS_{}", name.to_uppercase());
        if env::var(variable).is_ok_and(|value| value == "1") {
            println!("cargo::rustc-cfg={name}");
        }
    }
    println!("cargo::rerun-if-changed=docs");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    for page in fs::read_dir("docs")? {
        let page = page?;
        // There are pictures, too.
        if page
            .path()
            .extension()
            .is_none_or(|extension| extension != "md")
        {
            continue;
        }
        let text = fs::read_to_string(page.path())?;
        fs::write(Path::new(&out).join(page.file_name()), with_modules(&text))?;
    }
    Ok(())
}

/// A page for rustdoc: its links to other pages lead to the modules of `rpma::guide`. Its links to
/// other files of the repository are only their text.
fn with_modules(page: &str) -> String {
    let mut shown = String::new();
    let mut rest = page;
    while let Some((text, (target, after))) = rest
        .split_once("](")
        .and_then(|(text, after)| Some((text, after.split_once(')')?)))
    {
        shown.push_str(text);
        if target.starts_with("../") {
            shown.remove(shown.rfind('[').expect("the beginning of the link"));
        } else if let Some((page, anchor)) = target.split_once(".md") {
            // `async` is a keyword.
            let page = if page == "async" { "rpma_async" } else { page };
            let module = page.replace('-', "_");
            shown.push_str(&format!("](crate::guide::{module}{anchor})"));
        } else {
            shown.push_str(&format!("]({target})"));
        }
        rest = after;
    }
    shown + rest
}
