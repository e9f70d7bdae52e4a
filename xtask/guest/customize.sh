#!/bin/sh
# Runs inside the new root, with the network: adds what packages alone do not give. A kernel that
# is unpacked and not installed (no initramfs-tools), the headers of an older rdma-core, the keys,
# an initramfs. What the host needs goes to /srv.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
here=$(dirname "$0")
work=$(mktemp -d)
cd "$work"

echo "== package lists"
apt-get -q update
# The same archive has the older release: no address needs to be written down here.
# shellcheck disable=SC2016 # apt expands these
archive=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^trixie //p' | head -n 1)
echo "deb $archive bookworm main" >/etc/apt/sources.list.d/bookworm.list
apt-get -q update

echo "== kernel"
image=$(apt-cache depends linux-image-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -n 1)
apt-get -q download "$image"
dpkg -x linux-image-*.deb kernel
release=$(ls kernel/usr/lib/modules)
mkdir -p /usr/lib/modules
mv "kernel/usr/lib/modules/$release" /usr/lib/modules/
(
    cd "/usr/lib/modules/$release/kernel"
    # Large, and no virtual machine has them.
    rm -rf sound drivers/gpu drivers/media drivers/net/ethernet drivers/net/wireless drivers/scsi \
        drivers/staging drivers/iio drivers/hid drivers/usb drivers/mtd drivers/video
)
cp "kernel/boot/vmlinuz-$release" /srv/vmlinuz

echo "== soft-iWARP"
version=$(dpkg-deb -f linux-image-*.deb Version)
mkdir siw
(cd siw && sh "$here/siw.sh" "$release" "$version")
rm -rf siw
depmod -a "$release"

echo "== headers of rdma-core 44"
apt-get -q download libibverbs-dev/bookworm librdmacm-dev/bookworm
old=/opt/rdma-core-44
for package in libibverbs-dev_44*.deb librdmacm-dev_44*.deb; do dpkg -x "$package" "$old"; done
# Headers and .pc files of 44 against the root's own libraries: anything to link with would be the
# wrong version or a dangling link.
find "$old/usr/lib/x86_64-linux-gnu" -mindepth 1 -maxdepth 1 ! -name pkgconfig -exec rm -rf {} +
rm -rf "$old/usr/share"
rm /etc/apt/sources.list.d/bookworm.list
check44() {
    PKG_CONFIG_LIBDIR=$old/usr/lib/x86_64-linux-gnu/pkgconfig:/usr/lib/x86_64-linux-gnu/pkgconfig \
        PKG_CONFIG_SYSROOT_DIR=$old pkg-config "$@"
}
test "$(check44 --modversion libibverbs)" = 1.14.44.0
echo 'int main(void) { return !ibv_get_device_list(0); }' >t.c
# shellcheck disable=SC2046 # words are meant to be split
gcc -include infiniband/verbs.h t.c -o t $(check44 --cflags --libs libibverbs librdmacm)
# The native flush came with rdma-core 45: these must be the older headers.
# shellcheck disable=SC2046
if echo 'int f = IBV_FLUSH_PERSISTENT;' |
    gcc -include infiniband/verbs.h $(check44 --cflags libibverbs) -x c -c - -o t.o 2>/dev/null; then
    echo "the headers in $old are not those of rdma-core 44" >&2
    exit 1
fi

echo "== keys"
ssh-keygen -q -t ed25519 -N '' -C guest -f /etc/ssh/guest_host_key
ssh-keygen -q -t ed25519 -N '' -C host -f /srv/ssh_key
install -d -m 700 /root/.ssh
install -m 600 /srv/ssh_key.pub /root/.ssh/authorized_keys
echo "guest $(cut -d ' ' -f 1,2 /etc/ssh/guest_host_key.pub)" >/srv/known_hosts
install -m 644 "$here/sshd_config" /etc/ssh/sshd_config
install -m 755 "$here/init.sh" /init
install -m 644 "$here/ssh_config" /srv/ssh_config

echo "== initramfs"
mkdir -p initrd/bin initrd/lib initrd/proc initrd/sys initrd/dev initrd/root
cp /bin/busybox initrd/bin/
install -m 755 "$here/initrd.sh" initrd/init
for module in virtio_pci virtio_blk ext4; do
    modprobe -S "$release" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
    name=$(basename "$path" .ko.xz)
    busybox xzcat "$path" >"initrd/lib/$name.ko"
    echo "$name.ko" >>initrd/lib/order
done
(cd initrd && find . | cpio -o -H newc --quiet) | zstd -q -3 -o /srv/initrd

echo "== clean"
# It looks for keys that no emulated NVDIMM has, and complains on the console.
rm -f /etc/modprobe.d/nvdimm-security.conf
apt-get clean
cd /
rm -rf "$work" /var/lib/apt/lists/* /var/cache/apt/*.bin
mkdir -p /src /opt/rust /opt/cargo /opt/guest /mnt/fsdax /var/tmp/ext4
