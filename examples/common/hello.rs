//! The greeting that the clients write, and its translation.
//!
//! A client keeps it as librpma's `struct hello_t`: the number of the language (4 bytes,
//! little-endian), then a string of 1024 bytes that ends with a zero. Only the string is written to
//! the server.

use std::borrow::Cow;

pub(crate) const STR_SIZE: usize = 1024;
/// Where the string begins.
pub(crate) const STR_OFFSET: usize = 4;
pub(crate) const SIZE: usize = STR_OFFSET + STR_SIZE;

const GREETINGS: [&str; 2] = ["Hello world!", "¡Hola Mundo!"];

/// The greeting of a client that runs for the first time.
pub(crate) fn first() -> [u8; SIZE] {
    in_language(0)
}

/// The greeting in the other language.
pub(crate) fn translate(hello: &[u8; SIZE]) -> [u8; SIZE] {
    println!("translating...");
    let [a, b, c, d, ..] = *hello;
    in_language(u32::from_le_bytes([a, b, c, d]).wrapping_add(1) % 2)
}

fn in_language(language: u32) -> [u8; SIZE] {
    let greeting = GREETINGS[language as usize].as_bytes();
    let mut hello = [0; SIZE];
    hello[..STR_OFFSET].copy_from_slice(&language.to_le_bytes());
    hello[STR_OFFSET..][..greeting.len()].copy_from_slice(greeting);
    hello
}

/// The text of a string that ends with a zero.
pub(crate) fn text(string: &[u8]) -> Cow<'_, str> {
    let end = string.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&string[..end.unwrap_or(string.len())])
}
