//! The man pages and the completions, from the definition of the arguments.

use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

/// Prints the man page of `rpma`, or of one of its commands.
pub(crate) fn man(command: Option<&str>, out: &mut Output) -> Result<Outcome, Problem> {
    let mut cli = Cli::definition();
    // Sets the full names of the commands.
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => named(&cli, name)?,
    };
    out.bytes(&rendered(page)?)?;
    Ok(Outcome::Good)
}

/// A page. The library would print the examples and the exit status as one paragraph.
fn rendered(page: Command) -> Result<Vec<u8>, Problem> {
    let end = page.get_after_help().map(ToString::to_string);
    let page = page.after_help(Resettable::Reset);
    let mut bytes = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut bytes)
        .map_err(|error| Problem::new(format!("the page cannot be made: {error}"), ""))?;
    bytes.extend(sections(&end.unwrap_or_default()).into_bytes());
    Ok(bytes)
}

/// The sections at the end of a page, from the paragraphs at the end of a help.
fn sections(help: &str) -> String {
    let mut text = String::new();
    let mut notes = String::new();
    for paragraph in help.split("\n\n").map(str::trim) {
        let (head, rest) = paragraph.split_once(':').unwrap_or_default();
        match head {
            "Example" | "Examples" => text += &section("EXAMPLES", &as_it_is(rest)),
            "Exit status" => text += &section("EXIT STATUS", &escaped(rest.trim())),
            _ if paragraph.is_empty() => {}
            _ => notes += &format!(".PP\n{}\n", escaped(paragraph)),
        }
    }
    if notes.is_empty() {
        text
    } else {
        text + &section("NOTES", notes.trim_end())
    }
}

fn section(name: &str, text: &str) -> String {
    format!(".SH \"{name}\"\n{text}\n")
}

/// Lines that are not filled.
fn as_it_is(lines: &str) -> String {
    let lines = lines.trim_matches('\n').lines();
    let lines = lines.map(|line| escaped(line.strip_prefix("  ").unwrap_or(line)));
    format!(".nf\n{}\n.fi", lines.collect::<Vec<_>>().join("\n"))
}

/// Text without requests to roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

fn named(cli: &Command, name: &str) -> Result<Command, Problem> {
    let command = cli.find_subcommand(name).ok_or_else(|| {
        let remedy = "`rpma help` lists the commands";
        Problem::new(format!("there is no command {name:?}"), remedy)
    })?;
    Ok(command.clone())
}

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell, out: &mut Output) -> Result<Outcome, Problem> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::definition(), "rpma", &mut bytes);
    out.bytes(&bytes)?;
    Ok(Outcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::COMMANDS;

    /// Promise: examples keep their lines, and each part has a section with its usual name.
    #[test]
    fn the_end_of_a_page_has_sections() {
        let help = "A note.\n\nExamples:\n  rpma a   one\n  'b' \\\n\nExit status: 0 if good";
        let expected = ".SH \"EXAMPLES\"\n.nf\nrpma a   one\n\\&'b' \\e\n.fi\n.SH \"EXIT STATUS\"\n0 if good\n\
                        .SH \"NOTES\"\n.PP\nA note.\n";
        assert_eq!(sections(help), expected);
        assert_eq!(sections(""), "");
    }

    #[test]
    fn each_command_has_a_page_that_completions_know() -> Result<(), Problem> {
        let mut cli = Cli::definition();
        let commands = cli.get_subcommands().map(Command::get_name);
        assert_eq!(commands.collect::<Vec<_>>(), COMMANDS);
        cli.build();
        for name in COMMANDS {
            let page = rendered(named(&cli, name)?)?;
            let page = String::from_utf8_lossy(&page);
            assert!(page.contains(".SH \"EXAMPLES\""), "{page}");
            assert!(!page.contains(".SH EXTRA"), "{page}");
        }
        Ok(())
    }
}
