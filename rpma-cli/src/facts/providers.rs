//! The providers of rdma-core: the parts of its libraries that know a device.

use super::{Files, system};

/// The drivers of devices, and their providers in rdma-core.
pub(super) const PROVIDERS: [(&str, &str); 16] = [
    ("mlx4_core", "mlx4"),
    ("mlx5_core", "mlx5"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("cxgb4", "cxgb4"),
    ("qede", "qedr"),
    ("hns3", "hns"),
    ("be2net", "ocrdma"),
    ("hfi1", "hfi1verbs"),
    ("ib_qib", "ipathverbs"),
    ("erdma", "erdma"),
    ("mana", "mana"),
    ("vmw_pvrdma", "vmw_pvrdma"),
    ("rdma_rxe", "rxe"),
    ("siw", "siw"),
];

/// The providers that libibverbs can load. `mlx5.driver` names one, and its library is
/// `libmlx5-rdmav34.so`. `apt remove` takes the library away, and leaves the other file.
pub(super) fn providers(files: &Files) -> Vec<String> {
    let names = files.names("etc/libibverbs.d").into_iter();
    let names = names.filter_map(|name| Some(name.strip_suffix(".driver")?.to_owned()));
    let Some(dir) = library_dir(files) else {
        return names.collect();
    };
    let libraries = files.names(&dir);
    let has_library = |name: &String| {
        let driver = files.word(format!("etc/libibverbs.d/{name}.driver"));
        // A path is that of a vendor's own library.
        let is_elsewhere = driver.is_some_and(|driver| driver.contains('/'));
        let prefix = format!("lib{name}-rdmav");
        let mut of_name = libraries.iter().filter(|file| file.starts_with(&prefix));
        is_elsewhere || of_name.any(|file| files.exists(format!("{dir}/{file}")))
    };
    names.filter(has_library).collect()
}

/// The folder of the providers' libraries, which is beside libibverbs.
fn library_dir(files: &Files) -> Option<String> {
    let library = system::libibverbs(files)?;
    let (dir, _) = library.rsplit_once('/')?;
    Some(format!("{}/libibverbs", dir.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    /// Promise: a provider without its library is none.
    #[test]
    fn a_provider_has_a_library() -> io::Result<()> {
        let dir = "usr/lib/x86_64-linux-gnu/libibverbs";
        let maps = format!("7f00-7f01 r-xp 0 0 0   /{dir}.so.1.14.56.0\n");
        let library = |name: &str| format!("{dir}/{name}-rdmav34.so");
        let of = |more: &[(&str, &str)]| {
            let drivers = [
                ("etc/libibverbs.d/mlx5.driver", "driver mlx5\n"),
                ("etc/libibverbs.d/rxe.driver", "driver rxe\n"),
                ("etc/libibverbs.d/own.driver", "driver /opt/own/libown\n"),
                ("etc/libibverbs.d/README", ""),
            ];
            let tree = tree(&[&drivers, more].concat())?;
            Ok::<_, io::Error>(providers(&Files::new(tree.path())))
        };
        let (mlx5, rxe) = (library("libmlx5"), library("librxe"));
        let loaded = ("proc/self/maps", &*maps);
        assert_eq!(of(&[loaded])?, ["own"]);
        let broken = (&*mlx5, "-> ../libmlx5.so.1.24.56.0");
        assert_eq!(of(&[loaded, broken, (&rxe, "")])?, ["own", "rxe"]);
        // A program that does not show its libraries.
        assert_eq!(of(&[])?, ["mlx5", "own", "rxe"]);
        Ok(())
    }
}
