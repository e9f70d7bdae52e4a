//! Images that failed, in files, and the variables for them.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// This variable has the number of the only event at which checks are called.
pub(crate) const EVENT: &str = "RPMA_SIM_EVENT";

/// This variable has the directory of the files. The default is the system's temporary directory.
const DIRECTORY: &str = "RPMA_SIM_IMAGES";

/// Writes images to files, and returns a line with each path.
pub(crate) fn write(images: &[(String, Arc<[u8]>)]) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let directory = env::var_os(DIRECTORY).map_or_else(env::temp_dir, PathBuf::from);
    let mut text = String::new();
    for (name, bytes) in images {
        let (own, number) = (process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let file = format!(
            "rpma-sim-{own}-{number}-{}.image",
            name.replace([' ', '/'], "-")
        );
        let path = directory.join(file);
        let shown = path.display();
        text += &match fs::write(&path, bytes) {
            Ok(()) => format!("The image of {name} is in {shown}.\n"),
            Err(error) => format!("The image of {name} cannot be written to {shown}: {error}.\n"),
        };
    }
    text
}
