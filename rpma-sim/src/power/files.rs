//! Images that failed, in files, and the variables for them.

use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::store::{PAGE, Store};

/// This variable has the number of the only event at which checks are called.
pub(crate) const EVENT: &str = "RPMA_SIM_EVENT";

/// This variable has the directory of the files. The default is the system's temporary directory.
const DIRECTORY: &str = "RPMA_SIM_IMAGES";

/// Writes images to files, and returns a line with each path.
pub(crate) fn write(images: &[(String, Store)]) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let directory = env::var_os(DIRECTORY).map_or_else(env::temp_dir, PathBuf::from);
    let mut text = String::new();
    for (name, store) in images {
        let (own, number) = (process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let file = format!(
            "rpma-sim-{own}-{number}-{}.image",
            name.replace([' ', '/'], "-")
        );
        let path = directory.join(file);
        let shown = path.display();
        text += &match write_sparse(&path, store) {
            Ok(()) => format!("The image of {name} is in {shown}.\n"),
            Err(error) => format!("The image of {name} cannot be written to {shown}: {error}.\n"),
        };
    }
    text
}

/// Pages that were never written are holes in the file.
fn write_sparse(path: &Path, store: &Store) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(store.len() as u64)?;
    for (number, page) in store.pages() {
        file.write_all_at(page, (number * PAGE) as u64)?;
    }
    Ok(())
}
