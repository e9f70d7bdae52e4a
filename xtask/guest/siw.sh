#!/bin/sh
# Runs inside the new root, from customize.sh and in its directory for work: builds soft-iWARP,
# which Debian's kernel has switched off. `siw.sh RELEASE VERSION`: of the kernel, and of its
# package. Sources and tools come from packages too, and stay where they are unpacked.
set -eu
release=$1 version=$2
abi=${release%-amd64}
series=$(echo "$release" | cut -d . -f 1,2)

apt-get -q download make xz-utils
for package in "linux-headers-$release" "linux-headers-$abi-common" "linux-kbuild-$abi" \
    "linux-source-$series"; do
    # The archive has them together, but for the hours in which a new kernel arrives.
    apt-get -q download "$package=$version" && continue
    found=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
    if [ "$found" != "$version" ]; then
        echo "soft-iWARP: the kernel's version is $version, and that of $package is" \
            "${found:-unknown}. Both have to be one: try again when Debian's archive has it." >&2
    fi
    exit 1
done
for package in make_*.deb xz-utils_*.deb linux-headers-*.deb linux-kbuild-*.deb; do
    dpkg -x "$package" tools
done
PATH=$PWD/tools/usr/bin:$PATH
dpkg-deb --fsys-tarfile linux-source-*.deb |
    tar -xO "./usr/src/linux-source-$series.tar.xz" |
    xz -dc -T0 |
    tar -x --strip-components=1 --wildcards '*/drivers/infiniband/sw/siw/*'

headers=$PWD/tools/usr/src/linux-headers-$release
sed -i "s|/usr/src|$PWD/tools/usr/src|" "$headers/Makefile"
# With the kernel's types (BTF), pahole would be needed.
rm "$headers/vmlinux"
sources=drivers/infiniband/sw/siw
make -j "$(nproc)" -C "$headers" M="$PWD/$sources" CONFIG_RDMA_SIW=m modules
strip --strip-debug "$sources/siw.ko"
install -D -m 644 "$sources/siw.ko" "/usr/lib/modules/$release/kernel/$sources/siw.ko"
