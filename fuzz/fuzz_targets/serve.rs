#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rpma_cli::fuzz::serve(bytes));
