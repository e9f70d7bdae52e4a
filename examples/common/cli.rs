//! The steps of every example before its client or its server begins: arguments, log, exit status.

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;

/// The client or the server of an example.
pub(crate) struct Role {
    /// The arguments, as the usage line shows them.
    pub(crate) usage: &'static str,
    /// Notes for parts of the usage line that need an explanation.
    pub(crate) notes: &'static str,
    /// Gets the address, the port, and the arguments after those.
    pub(crate) main: fn(&str, u16, &[String]) -> Result<()>,
}

/// Runs the role that the first argument names.
///
/// The exit status is 0 if all went well, 255 if arguments are missing or not usable, and 1 after
/// every other failure. The reason is on stderr.
pub(crate) fn run(client: &Role, server: &Role) -> ExitCode {
    // The library logs its work through the `log` crate; RUST_LOG=debug shows more of it.
    let level = env_logger::Env::default().default_filter_or("info");
    env_logger::Builder::from_env(level)
        .format_timestamp(None)
        .init();

    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_else(|| "example".into());
    let program = program.to_string_lossy();
    let args: Result<Vec<String>, OsString> = args.map(OsString::into_string).collect();
    let args = match args {
        Ok(args) => args,
        Err(arg) => {
            eprintln!("the argument {arg:?} is not UTF-8");
            return ExitCode::from(255);
        }
    };
    let role = match args.first().map(String::as_str) {
        Some("client") => client,
        Some("server") => server,
        _ => {
            eprintln!("usage: {program} client {}", client.usage);
            eprintln!("       {program} server {}", server.usage);
            return ExitCode::from(255);
        }
    };
    // Those that the usage line has outside of brackets.
    let words = role.usage.split_whitespace();
    let needed = words.filter(|word| word.starts_with('<')).count();
    let (name, addr, port, more) = match args.as_slice() {
        [name, addr, port, more @ ..] if more.len() + 2 >= needed => (name, addr, port, more),
        _ => {
            eprintln!("usage: {program} {} {}", args[0], role.usage);
            eprint!("{}", role.notes);
            return ExitCode::from(255);
        }
    };
    match number("port", port).and_then(|port| (role.main)(addr, port, more)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(if error.is::<BadArgument>() { 255 } else { 1 })
        }
    }
}

/// An argument that cannot be used.
#[derive(Debug)]
pub(crate) struct BadArgument(pub(crate) String);

impl fmt::Display for BadArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadArgument {}

/// The number that `text` is.
pub(crate) fn number<T: FromStr<Err = std::num::ParseIntError>>(
    what: &str,
    text: &str,
) -> Result<T> {
    let unusable = |error| BadArgument(format!("the {what} \"{text}\" is not usable: {error}"));
    Ok(text.parse().map_err(unusable)?)
}

/// The seconds that the first one of more arguments has, at least 1; `default` without one.
pub(crate) fn timeout(more: &[String], default: u32) -> Result<Duration> {
    let seconds = match more {
        [] => default,
        [seconds, ..] => number("timeout", seconds)?,
    };
    if seconds == 0 {
        return Err(BadArgument("the timeout is at least 1 second".to_owned()).into());
    }
    Ok(Duration::from_secs(seconds.into()))
}

/// Checks that `word`, and a zero after it, have room in `size` bytes.
pub(crate) fn check_word(word: &str, size: usize) -> Result<()> {
    if word.len() < size {
        return Ok(());
    }
    let (len, max) = (word.len(), size - 1);
    Err(BadArgument(format!("a word of {len} bytes: there is room for {max}")).into())
}
