//! The sources of the guest. All of them are part of the cache key, so that a changed recipe is a
//! different guest.

/// The Debian release of the guest.
pub(super) const SUITE: &str = "trixie";

const PACKAGES: &str = include_str!("../../guest/packages");

/// The scripts that run inside the root, by name.
pub(super) const FILES: [(&str, &str); 7] = [
    ("customize.sh", include_str!("../../guest/customize.sh")),
    ("image.sh", include_str!("../../guest/image.sh")),
    ("init.sh", include_str!("../../guest/init.sh")),
    ("initrd.sh", include_str!("../../guest/initrd.sh")),
    ("siw.sh", include_str!("../../guest/siw.sh")),
    ("ssh_config", include_str!("../../guest/ssh_config")),
    ("sshd_config", include_str!("../../guest/sshd_config")),
];

/// How mmdebstrap is called, without the target.
pub(super) fn mmdebstrap_args() -> Vec<String> {
    let lines = PACKAGES.lines().map(str::trim);
    let packages: Vec<_> = lines
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect();
    let mut args = vec!["--variant=minbase".to_owned()];
    // Not read in the guest.
    for path in ["doc", "info", "locale", "man", "lintian"] {
        args.push(format!("--dpkgopt=path-exclude=/usr/share/{path}/*"));
    }
    args.push("--aptopt=APT::Install-Recommends \"false\"".to_owned());
    args.push(format!("--include={}", packages.join(",")));
    args.push(SUITE.to_owned());
    args
}

/// The name of the guest that this recipe gives: changes with every byte of it.
pub(super) fn hash() -> String {
    let args = mmdebstrap_args();
    let files = FILES.iter().flat_map(|(name, text)| [*name, *text]);
    // FNV-1a: the standard library's hasher may differ between versions of Rust.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in args.iter().map(String::as_str).chain(files) {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_listed_without_comments() {
        let args = mmdebstrap_args();
        let include = args
            .iter()
            .find(|arg| arg.starts_with("--include="))
            .unwrap();
        assert!(include.contains(",librpma-dev,"), "{include}");
        assert!(!include.contains(['#', ' ', '\n']), "{include}");
    }

    #[test]
    fn hash_is_stable_and_fits_a_file_name() {
        assert_eq!(hash(), hash());
        assert_eq!(hash().len(), 16);
    }
}
