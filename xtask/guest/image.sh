#!/bin/sh
# Runs inside the root: makes of it the disk that the guest boots from.
set -eu
# The root once more, without anything that is mounted on it.
mount --bind / /mnt
truncate -s 4G /srv/root.img
mke2fs -q -t ext4 -L rpma-guest -m 0 -d /mnt /srv/root.img
