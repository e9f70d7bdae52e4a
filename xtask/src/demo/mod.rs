//! `cargo xtask demo`: the power cut, or librpma's examples.

mod build;
mod pairs;
mod place;
mod power_cut;
#[path = "../../../examples/common/runs.rs"]
mod runs;

use anyhow::Result;

use crate::host::Workspace;
use pairs::Show;

/// What is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demo(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    PowerCut,
    One(Show),
    All,
}

impl Demo {
    /// `name` is that of an example, or its beginning.
    pub(crate) fn parse(name: Option<&str>, all: bool) -> Result<Self> {
        let kind = match name {
            Some(name) => Kind::One(Show::find(name)?),
            None if all => Kind::All,
            None => Kind::PowerCut,
        };
        Ok(Self(kind))
    }

    /// Shows it; tells whether all went well.
    pub(crate) fn run(self, workspace: &Workspace, host: bool) -> Result<bool> {
        match (self.0, host) {
            (Kind::PowerCut, false) => power_cut::in_guest(workspace).map(|()| true),
            (Kind::PowerCut, true) => power_cut::on_host(workspace).map(|()| true),
            (Kind::One(show), host) => pairs::one(workspace, show, host).map(|()| true),
            (Kind::All, host) => pairs::all(workspace, host),
        }
    }
}
