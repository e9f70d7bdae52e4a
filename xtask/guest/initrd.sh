#!/bin/busybox sh
# The first program in the guest: finds the root disk and goes there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /lib/order); do $b insmod "/lib/$module"; done
tries=0
until [ -b /dev/vda ]; do
    tries=$((tries + 1))
    if [ $tries -gt 100 ]; then echo "GUEST FAILED: no root disk"; $b poweroff -f; fi
    $b sleep 0.1
done
$b mount -t ext4 -o noinit_itable /dev/vda /root || {
    echo "GUEST FAILED: the root disk cannot be mounted"
    $b poweroff -f
}
for dir in dev proc sys; do $b mount --move /$dir /root/$dir; done
exec $b switch_root /root /init
