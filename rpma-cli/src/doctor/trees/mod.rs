//! Hosts that are made of files, as bug reports show them, and the verdict and remedy for each.

mod containers;
mod devices;
mod hosts;
mod memory;

use std::io;

use clap::Parser;
use rpma::{Device, Error};
use rustix::io::Errno;

use super::tests::Text;
use super::{Host, examine};
use crate::cli::{Cli, Command};
use crate::facts::Facts;
use crate::facts::tests::tree;
use crate::interrupt::Interrupt;
use crate::report::{HEAD, Output};

type Tree<'a> = &'a [(&'a str, &'a str)];

/// The output of `rpma doctor` on a host with these files.
fn diagnose(args: &[&str], trees: &[Tree<'_>]) -> io::Result<Vec<String>> {
    let dir = tree(&trees.concat())?;
    let host = Host {
        facts: Facts::read(dir.path()),
        open: no_device,
        is_simulated: false,
    };
    let args = [&["rpma", "doctor"], args].concat();
    let Command::Doctor(args) = Cli::parse_from(args).command else {
        panic!("another command");
    };
    let text = Text::default();
    let mut out = Output::to(text.clone());
    examine(&args, &host, &Interrupt::default(), &mut out).map_err(io::Error::other)?;
    let text = text.read();
    Ok(text
        .lines()
        .skip(HEAD.lines().count())
        .map(str::to_owned)
        .collect())
}

/// No device of a tree can be opened.
fn no_device(_address: &str) -> rpma::Result<Device> {
    Err(Error::Provider {
        call: "rdma_bind_addr",
        cause: Errno::NODEV.into(),
        hint: None,
    })
}

/// The finding of this check, and its remedy.
#[track_caller]
fn finds(lines: &[String], found: &str, remedy: &str) {
    let at = lines.iter().position(|line| line == found);
    let at = at.unwrap_or_else(|| panic!("{found}\nin {lines:#?}"));
    let next = lines[at + 1].trim_start().strip_prefix("-> ");
    assert_eq!(next.unwrap_or_default(), remedy, "{lines:#?}");
}

/// The verdict and the remedy about memory.
#[track_caller]
fn of_memory(args: &[&str], trees: &[Tree<'_>], found: &str, remedy: &str) {
    let lines = diagnose(args, trees).expect("a tree");
    finds(&lines, found, remedy);
}

/// A device-DAX that a program can map.
const DEVDAX: Tree<'_> = &[
    ("dev/dax0.0", ""),
    ("sys/bus/dax/devices/dax0.0/size", "270532608"),
    ("sys/bus/dax/drivers/device_dax/dax0.0/", ""),
];
const ETHERNET: Tree<'_> = &[
    ("sys/class/net/enp5s0/type", "1"),
    ("sys/class/net/enp5s0/flags", "0x1003"),
    ("sys/class/net/enp5s0/operstate", "up"),
];

/// A device with these files, whose port has these.
fn device(name: &str, files: &[(&str, &str)], port: &[(&str, &str)]) -> Vec<(String, String)> {
    let dir = format!("sys/class/infiniband/{name}");
    let of = |dir: &str, (file, text): &(&str, &str)| (format!("{dir}/{file}"), (*text).to_owned());
    let own = files.iter().map(|file| of(&dir, file));
    let port_dir = format!("{dir}/ports/1");
    own.chain(port.iter().map(|file| of(&port_dir, file)))
        .collect()
}

/// The output on a host with these devices, and more files.
fn with_devices(args: &[&str], devices: &[Vec<(String, String)>], more: Tree<'_>) -> Vec<String> {
    let files = devices.iter().flatten();
    let files: Vec<_> = files.map(|(path, text)| (&**path, &**text)).collect();
    diagnose(args, &[&files, more]).expect("a tree")
}
