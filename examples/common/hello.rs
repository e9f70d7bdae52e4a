//! The greeting that the clients write, and its translation.
//!
//! A client keeps it as librpma's `struct hello_t`: the number of the language (4 bytes,
//! little-endian), then a string of 1024 bytes that ends with a zero. Only the string is written to
//! the server.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::Result;

use super::cli::number;
use super::memory::{Contents, Memory, Region};

pub(crate) const STR_SIZE: usize = 1024;
/// Where the string is.
pub(crate) const STR: Range<usize> = 4..SIZE;
const SIZE: usize = 4 + STR_SIZE;

const SIGNATURE: &[u8] = b"RPMA_EXAMPLE_SIG\0";
const GREETINGS: [&str; 2] = ["Hello world!", "¡Hola Mundo!"];

/// The memory of a client, from its arguments `[<pmem-path> [<pmem-offset>]]`. It has a greeting.
pub(crate) fn client_memory(args: &[String]) -> Result<Memory> {
    let contents = Contents {
        signature: SIGNATURE,
        size: SIZE,
        initial: &in_language(0),
    };
    match args {
        [] => Memory::dram(0, &contents),
        [path] => Memory::pmem(path, 0, &contents),
        [path, offset, ..] => Memory::pmem(path, number("offset", offset)?, &contents),
    }
}

/// The memory of a server, from its arguments `[<pmem-path>]`. It has room for a string.
pub(crate) fn server_memory(args: &[String]) -> Result<Memory> {
    let contents = Contents {
        signature: SIGNATURE,
        size: STR_SIZE,
        initial: b"\0",
    };
    match args {
        [] => Memory::dram(0, &contents),
        [path, ..] => Memory::pmem(path, 0, &contents),
    }
}

/// Prints the text that a client is going to write.
pub(crate) fn print_next(client: &Region) -> Result<()> {
    let hello = client.load::<SIZE>()?;
    println!("Next value: {}", text(&hello[STR]));
    Ok(())
}

/// Prints the text of an earlier client, if there was one.
pub(crate) fn print_old(server: &Region) -> Result<()> {
    let string = server.load::<STR_SIZE>()?;
    if string[0] != 0 {
        println!("Old value: {}", text(&string));
    }
    Ok(())
}

/// Prints the text that is there when the client is done.
pub(crate) fn print_new(server: &Region) -> Result<()> {
    println!("New value: {}", text(&server.load::<STR_SIZE>()?));
    Ok(())
}

/// Puts the greeting in the other language into a client's memory, for its next run.
pub(crate) fn translate(client: &Region) -> Result<()> {
    println!("translating...");
    let language = u32::from_le_bytes(client.load()?);
    let hello = in_language(language.wrapping_add(1) % 2);
    client.store(&hello)?;
    println!("Translation: {}", text(&hello[STR]));
    Ok(())
}

fn in_language(language: u32) -> [u8; SIZE] {
    let greeting = GREETINGS[language as usize].as_bytes();
    let mut hello = [0; SIZE];
    hello[..4].copy_from_slice(&language.to_le_bytes());
    hello[STR][..greeting.len()].copy_from_slice(greeting);
    hello
}

/// The text of a string that ends with a zero.
pub(crate) fn text(string: &[u8]) -> Cow<'_, str> {
    let end = string.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&string[..end.unwrap_or(string.len())])
}
