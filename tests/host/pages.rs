//! The pages of docs/ agree with the code that they show.

use std::fs;
use std::path::Path;

use crate::failed::Result;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The reader of the page saves three files. They are the example `hello` and its test, except that
/// their code finds the library as a crate.
#[test]
fn getting_started_has_the_files_of_the_example() -> Result {
    let page = read("docs/getting-started.md");
    for file in [
        "examples/hello/hello.rs",
        "examples/hello/main.rs",
        "tests/hello.rs",
    ] {
        let (_, block) = page.split_once(&format!("<!-- {file} -->\n")).expect(file);
        let block = block.split("```").nth(1).ok_or("a block of code")?;
        let code: Vec<_> = block
            .lines()
            .skip(1)
            .filter(|line| !line.is_empty())
            .collect();
        let text = read(file);
        let with_module = |line: &&str| {
            let of_page = line.starts_with("//! ") && line.contains("getting-started");
            let of_module = ["mod hello;", "#[path", "#[allow(unreachable_pub"];
            line.is_empty() || of_page || of_module.iter().any(|start| line.starts_with(start))
        };
        let expected: Vec<_> = text.lines().filter(|line| !with_module(line)).collect();
        assert_eq!(code, expected, "{file}");
    }
    Ok(())
}

/// A page without a module of `rpma::guide` cannot be reached from the crate's documentation.
#[test]
fn each_page_is_in_the_guide() -> Result {
    let guide = read("rpma/src/guide.rs");
    let pages = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"))?;
    for page in pages {
        let page = page?;
        // There are pictures, too.
        if page.path().extension().is_none_or(|of| of != "md") {
            continue;
        }
        let name = format!("{:?}", page.file_name());
        assert!(
            guide.contains(&name),
            "{name} has no module in rpma/src/guide.rs"
        );
    }
    Ok(())
}
