//! The first program of docs/getting-started.md.

use std::process::ExitCode;

use hello::Result;

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

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", addr, port] => {
            let (peer, ep) = hello::listen(addr, port.parse()?)?;
            println!("listening on {addr} {}", ep.get_port());
            let memory = hello::serve(&peer, &ep)?;
            println!("{}", String::from_utf8_lossy(&memory[..12]));
        }
        ["write", addr, port] => hello::write(addr, port.parse()?, b"Hello world!")?,
        _ => return Err("arguments: serve ADDRESS PORT, or write ADDRESS PORT".into()),
    }
    Ok(())
}
