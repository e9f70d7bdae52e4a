//! Replaces a file as a whole: an old report is not lost if the disk is full.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::Builder;

use crate::problem::Problem;

/// Writes the text beside its place, and renames it. A device or a pipe is written to.
pub(super) fn replace(place: &Path, text: &str) -> Result<(), Problem> {
    let name = place.display();
    let written = match fs::metadata(place) {
        Ok(old) if old.is_dir() => {
            let what = format!("{name} is a directory");
            return Err(Problem::new(what, "Give the path of a file with -o"));
        }
        Ok(old) if !old.is_file() => File::create(place).and_then(|file| write(file, text)),
        // A link stays, and its file is replaced.
        Ok(old) => fs::canonicalize(place).and_then(|place| rename(&place, Some(&old), text)),
        Err(_) => rename(place, None, text),
    };
    written.map_err(|error| {
        let what = format!("the report cannot be written to {name}: {error}");
        Problem::new(what, "Free space there, or give another path with -o")
    })
}

fn write(mut file: impl Write, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.flush()
}

fn rename(place: &Path, old: Option<&Metadata>, text: &str) -> io::Result<()> {
    let folder = match place.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // Otherwise only this user could read it.
    let permissions = old.map_or_else(|| Permissions::from_mode(0o666), Metadata::permissions);
    let mut file = Builder::new()
        .prefix(".rpma-")
        .suffix(".html")
        .permissions(permissions)
        .tempfile_in(folder)?;
    write(&mut file, text)?;
    file.as_file().sync_all()?;
    file.persist(place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::tempdir;

    use super::*;

    #[test]
    fn an_old_report_is_replaced_and_no_other_file_is_left() -> io::Result<()> {
        let folder = tempdir()?;
        let place = folder.path().join("report.html");
        for text in ["old", "new"] {
            replace(&place, text).expect(text);
            assert_eq!(fs::read_to_string(&place)?, text);
        }
        assert_eq!(fs::read_dir(folder.path())?.count(), 1);
        Ok(())
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced_with_its_rights() -> io::Result<()> {
        let folder = tempdir()?;
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        fs::write(&file, "old")?;
        fs::set_permissions(&file, Permissions::from_mode(0o640))?;
        symlink("file", &link)?;
        replace(&link, "new").expect("it can be written");
        assert!(fs::symlink_metadata(&link)?.is_symlink());
        assert_eq!(fs::read_to_string(&file)?, "new");
        assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o640);
        Ok(())
    }

    #[test]
    fn a_full_disk_a_directory_and_an_absent_folder_are_problems() -> io::Result<()> {
        let folder = tempdir()?;
        let inside = folder.path().join("absent/report.html");
        for (place, words) in [
            (Path::new("/dev/full"), "Free space there"),
            (folder.path(), "is a directory. Give the path of a file"),
            (&inside, "give another path with -o"),
        ] {
            let problem = replace(place, "text").expect_err(words).to_string();
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(fs::read_dir(folder.path())?.count(), 0);
        Ok(())
    }
}
