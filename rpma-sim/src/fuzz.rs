//! A promise about the texts that a failing test prints, and that a person gives back to it: a text
//! that is taken names one fault, or one order, and is written as it was meant.

use std::str;

use crate::explore::RunOrder;
use crate::sweep::RunFault;

/// The text of a fault, or of an order.
pub fn text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    if let Ok(fault) = text.parse::<RunFault>() {
        let again = fault.to_string().parse::<RunFault>();
        assert_eq!(again.as_ref(), Ok(&fault), "{text:?}");
    }
    if let Ok(order) = text.parse::<RunOrder>() {
        let again = order.to_string().parse::<RunOrder>();
        assert_eq!(again.as_ref(), Ok(&order), "{text:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    /// Promise: each file of the corpus holds the property. Each fault that a fuzzer has found is one
    /// of them.
    #[test]
    fn the_corpus() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/text");
        let files: Vec<_> = fs::read_dir(corpus).expect("a corpus").collect();
        assert!(!files.is_empty(), "the corpus is empty");
        for file in files {
            let path = file.expect("a file").path();
            println!("{}", path.display());
            super::text(&fs::read(path).expect("read"));
        }
    }
}
