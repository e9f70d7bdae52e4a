//! The drivers of RDMA devices, with their parts in the kernel and in rdma-core.

use super::{Files, system};

/// A driver's name, its module for RDMA if it is another one, its provider in rdma-core (the part of
/// the libraries that knows its devices), and the beginning of the kernel's names for them.
type Driver = (&'static str, &'static str, &'static str, &'static str);

const DRIVERS: [Driver; 20] = [
    ("mlx4_core", "mlx4_ib", "mlx4", "mlx4_"),
    ("mlx5_core", "mlx5_ib", "mlx5", "mlx5_"),
    ("bnxt_en", "bnxt_re", "bnxt_re", "bnxt_re"),
    ("ice", "irdma", "irdma", "irdma"),
    ("i40e", "irdma", "irdma", "i40iw"),
    ("idpf", "", "irdma", "irdma"),
    ("cxgb4", "iw_cxgb4", "cxgb4", "cxgb4_"),
    ("qede", "qedr", "qedr", "qedr"),
    ("hns3", "hns_roce_hw_v2", "hns", "hns_"),
    ("be2net", "ocrdma", "ocrdma", "ocrdma"),
    ("mana", "mana_ib", "mana", "mana_"),
    ("hfi1", "", "hfi1verbs", "hfi1_"),
    ("ib_qib", "", "ipathverbs", "qib"),
    ("enic", "", "usnic_verbs", "usnic_"),
    ("efa", "", "efa", "efa_"),
    ("erdma", "", "erdma", "erdma_"),
    ("ionic", "", "ionic", "ionic_"),
    ("vmw_pvrdma", "", "vmw_pvrdma", "vmw_pvrdma"),
    ("rdma_rxe", "", "rxe", "rxe"),
    ("siw", "", "siw", "siw"),
];

fn find(driver: &str) -> Option<Driver> {
    DRIVERS.into_iter().find(|(name, ..)| *name == driver)
}

/// The name of a known driver.
pub(crate) fn name(driver: &str) -> Option<&'static str> {
    find(driver).map(|(name, ..)| name)
}

/// The module for RDMA of an adapter of Ethernet.
pub(super) fn module(driver: &str) -> Option<&'static str> {
    let (_, module, ..) = find(driver)?;
    (!module.is_empty()).then_some(module)
}

pub(super) fn provider(driver: &str) -> Option<&'static str> {
    find(driver).map(|(_, _, provider, _)| provider)
}

/// The modules for RDMA.
pub(super) fn modules() -> impl Iterator<Item = &'static str> {
    let modules = DRIVERS.into_iter().map(|(_, module, ..)| module);
    modules.filter(|module| !module.is_empty())
}

/// The beginnings of the kernel's names for devices, and of the simulator's.
pub(super) fn beginnings() -> impl Iterator<Item = &'static str> {
    let beginnings = DRIVERS.into_iter().map(|(.., beginning)| beginning);
    beginnings.chain(["strict"])
}

/// The providers that libibverbs can load. `mlx5.driver` names one, and its library is
/// `libmlx5-rdmav34.so`. `apt remove` takes the library away, and leaves the other file.
pub(super) fn providers(files: &Files) -> Vec<String> {
    let dir = library_dir(files);
    let libraries = dir.as_ref().map_or_else(Vec::new, |dir| files.names(dir));
    let has_library = |name: &String| {
        let Some(dir) = &dir else {
            return true;
        };
        let driver = files.word(format!("etc/libibverbs.d/{name}.driver"));
        // A path is that of a vendor's own library.
        let is_elsewhere = driver.is_some_and(|driver| driver.contains('/'));
        let prefix = format!("lib{name}-rdmav");
        let mut of_name = libraries.iter().filter(|file| file.starts_with(&prefix));
        is_elsewhere || of_name.any(|file| files.exists(format!("{dir}/{file}")))
    };
    let names = files.names("etc/libibverbs.d").into_iter();
    let names = names.filter_map(|name| Some(name.strip_suffix(".driver")?.to_owned()));
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
