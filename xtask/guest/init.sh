#!/bin/bash
# Process 1 of the guest: brings up RDMA and persistent memory, then sshd. It says on the console
# how that went (GUEST READY, GUEST FAILED: why), which is what the host waits for.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

fail() {
    echo "GUEST FAILED: $*"
    busybox poweroff -f
    sleep 60
}
try() { "$@" || fail "$* (exit status $?)"; }
# Waits for a path to appear: the kernel makes devices in its own time.
await() {
    for _ in {1..150}; do
        [ -e "$1" ] && return
        sleep 0.1
    done
    fail "$1 did not appear: $2"
}

umask 022
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/sshd
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -sf /proc/self/fd /dev/fd
# The number of this machine, and how many there are on the link.
peer=$(sed -n 's/.*rpma\.peer=\([1-3]\).*/\1/p' /proc/cmdline)
peers=$(sed -n 's/.*rpma\.peers=\([1-3]\).*/\1/p' /proc/cmdline)
hostname "rpma-guest$peer"
sed -i "s/=10\.77\.0\.1/=10.77.0.$peer/; s/=fd77::1/=fd77::$peer/" /etc/ssh/sshd_config
# RDMA pins memory.
ulimit -l unlimited

# The network cards are told apart by the addresses that the host gave them.
modprobe -a virtio_pci virtio_net 9pnet_virtio
nic() {
    local address file
    for _ in {1..150}; do
        for file in /sys/class/net/*/address; do
            read -r address <"$file"
            if [ "$address" = "$1" ]; then
                try ip link set "$(basename "$(dirname "$file")")" name "$2"
                return
            fi
        done
        sleep 0.1
    done
    fail "no network card $1 ($2)"
}
try ip link set lo up
nic 52:54:00:77:00:02 ssh0
try ip addr add 10.0.2.15/24 dev ssh0
try ip link set ssh0 up
/usr/sbin/sshd -D -e &
sshd=$!

nic "52:54:00:77:01:0$peer" roce0
try ip addr add "10.77.0.$peer/24" dev roce0
try ip addr add "fd77::$peer/64" dev roce0 nodad
# The host changes the arguments of this queueing discipline and never replaces it: while one is
# replaced, the kernel refuses packets. soft-RoCE answers a refused packet with the error state of
# its queue pair. That of the connection manager stays in that state, and no program can connect.
try tc qdisc add dev roce0 root netem limit 100000
try ip link set roce0 up
for module in rdma_rxe siw rdma_ucm ib_uverbs dummy vxlan; do try modprobe $module; done
try rdma link add rxe0 type rxe netdev roce0
# A second device, for what must not be mixed.
try ip link add roce1 type dummy
try ip addr add 10.78.0.1/24 dev roce1
try ip link set roce1 up
try rdma link add rxe1 type rxe netdev roce1
# A third one, soft-iWARP, with an interface of its own: on one with both kinds of devices, the
# connection manager could not tell which is meant. It is a tunnel between the machines' roce0, and
# so has the faults of that link.
try ip link add iwarp0 type vxlan id 1 dstport 4789 local "10.77.0.$peer"
for ((other = 1; other <= peers; other++)); do
    [ "$other" = "$peer" ] && continue
    try bridge fdb append 00:00:00:00:00:00 dev iwarp0 dst "10.77.0.$other"
done
try ip addr add "10.79.0.$peer/24" dev iwarp0
try ip addr add "fd79::$peer/64" dev iwarp0 nodad
try ip link set iwarp0 up
try rdma link add siw0 type siw netdev iwarp0
await /sys/class/infiniband/rxe0 "soft-RoCE made no device"
await /sys/class/infiniband/rxe1 "soft-RoCE made no second device"
await /sys/class/infiniband/siw0 "soft-iWARP made no device"
await /dev/infiniband/uverbs0 "the verbs device has no file"
await /dev/infiniband/rdma_cm "the connection manager has no file"

# Two NVDIMMs, in the order of their addresses: device-DAX, and a file system on fsdax. Each is
# set up once and then found again: what is on it must outlive a power cut.
for module in nfit nd_pmem device_dax dax_pmem; do try modprobe $module; done
namespace() {
    await "/sys/bus/nd/devices/namespace$1.0" "the host gave no such NVDIMM"
    [ "$(cat "/sys/bus/nd/devices/namespace$1.0/mode")" = "$2" ] && return
    try ndctl create-namespace -f -e "namespace$1.0" -m "$3" --map=mem >/dev/null
}
namespace 0 dax devdax
await /dev/dax0.0 "device-DAX memory"
namespace 1 memory fsdax
await /sys/bus/nd/devices/region1 "the second NVDIMM"
block=
for _ in {1..150}; do
    for path in /sys/bus/nd/devices/region1/*/block/*; do
        [ -e "$path" ] && block=/dev/$(basename "$path")
    done
    [ -b "$block" ] && break
    sleep 0.1
done
[ -b "$block" ] || fail "the second NVDIMM has no block device"
if [ -z "$(blkid -o value -s TYPE "$block")" ]; then
    try mkfs.ext4 -q -F -b 4096 "$block"
fi
try mount -o dax=always "$block" /mnt/fsdax

try mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=mmap src /src
[ "$(stat -f -c %T /var/tmp/ext4)" = ext2/ext3 ] || fail "/var/tmp/ext4 is not on ext4"

echo "GUEST READY after $(cut -d ' ' -f 1 /proc/uptime) s"
wait $sshd
fail "sshd ended"
