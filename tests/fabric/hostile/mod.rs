//! Two ends of which one is hostile. The steps are chosen by bytes: those of the corpus here, and those
//! that a fuzzer makes in `fuzz/`.

mod bytes;
mod log;
mod replica;
mod server;
mod stranger;
mod vanish;

use std::fs;

use crate::common::prelude::*;

/// Promise: each run of the corpus keeps the promises of its target, and is repeated by its bytes. Each
/// fault that a fuzzer has found is one of them.
#[test]
fn the_corpus() -> Result {
    type Run = fn(&[u8]) -> String;
    let targets: [(&str, Run); 3] = [
        ("server", server::run),
        ("replica", replica::run),
        ("log", log::run),
    ];
    for (name, run) in targets {
        let corpus = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        let files: Vec<_> = fs::read_dir(corpus)?.collect();
        assert!(!files.is_empty(), "the corpus of {name} is empty");
        for file in files {
            let path = file?.path();
            println!("{}", path.display());
            let bytes = fs::read(path)?;
            assert_eq!(
                run(&bytes),
                run(&bytes),
                "a run differs from the one before"
            );
        }
    }
    Ok(())
}
