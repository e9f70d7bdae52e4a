//! The first program of docs/getting-started.md.

use std::error::Error;
use std::process::ExitCode;

#[allow(unreachable_pub, reason = "a library on that page")]
mod hello;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", addr, port, path] => {
            let (peer, ep) = hello::listen(addr, port.parse()?)?;
            println!("listening on {addr} {}", ep.get_port());
            let mut bytes = [0; 12];
            hello::serve(&peer, &ep, path)?.read_at(0, &mut bytes)?;
            println!("{}", String::from_utf8_lossy(&bytes));
        }
        ["write", addr, port] => hello::write(addr, port.parse()?, b"Hello world!")?,
        _ => return Err("arguments: serve ADDRESS PORT PATH, or write ADDRESS PORT".into()),
    }
    Ok(())
}
