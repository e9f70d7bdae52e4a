//! Turns the findings of rpma-sys in the headers into cfgs for the examples and the device tests,
//! the log of docs/testing-your-program.md into a file for tests/fabric/power/late.rs, and the map
//! of docs/building-a-log.md into one for tests/fabric/replicated_log/compaction.rs.

use std::path::Path;
use std::{env, fs};

/// A constant of the page, and the shorter one of the test.
type Shorter = (&'static str, &'static str);

const LOG: [Shorter; 1] = [("Duration::from_secs(10)", "Duration::from_millis(300)")];
const MAP: [Shorter; 2] = [("1 << 10", "128"), ("64 << 10", "128")];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["native_flush", "native_atomic_write"] {
        println!("cargo::rustc-check-cfg=cfg({name})");
        let variable = format!("DEP_RPMA_VERBS_{}", name.to_uppercase());
        if env::var(variable).is_ok_and(|value| value == "1") {
            println!("cargo::rustc-cfg={name}");
        }
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let save = |page: &str, word: &str, shorter: &[Shorter], file: &str| {
        println!("cargo::rerun-if-changed={page}");
        let page = fs::read_to_string(page).expect("the page");
        let code = code_of(&page, word, shorter);
        fs::write(Path::new(&out).join(file), code).expect("it is written");
    };
    let page = "docs/testing-your-program.md";
    save(page, "struct Replica", &LOG, "log-of-the-docs.rs");
    let page = "docs/building-a-log.md";
    save(page, "fn compact", &MAP, "map-of-the-docs.rs");
}

/// The code of the page that has this word, with its constants replaced.
fn code_of(page: &str, word: &str, shorter: &[Shorter]) -> String {
    let mut blocks = page
        .split("```")
        .filter(|block| block.starts_with("rust\n"));
    let code = blocks.find(|block| block.contains(word));
    let mut code = code
        .expect("the page has the code")
        .trim_start_matches("rust\n")
        .to_owned();
    for (constant, shorter) in shorter {
        let count = code.matches(constant).count();
        assert_eq!(count, 1, "{constant} is in one place");
        code = code.replace(constant, shorter);
    }
    code
}
