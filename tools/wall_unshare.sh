# A root of its own, by hand: $1 counts what follows: the own folder, the media (or ""), what of the
# system is shown, or covered and, when all is there, closed to writing. What comes after those is
# started in it. Runs in new namespaces, as their root.
count=$1; folder=$2; media=$3; shift 3
root=/sys  # covered in this mount namespace alone; nothing that is shown lies under it
PATH=$PATH:/usr/sbin:/sbin
mount -t tmpfs -o mode=755 wall "$root"
mkdir -p "$root/sandbox" "$root/tmp" "$root/proc" "$root/dev/shm" "$root/old"
mount -t tmpfs -o size=64m,mode=1777 tmp "$root/tmp"
mount -t tmpfs -o size=64m,mode=1777 shm "$root/dev/shm"
rest=$((count - 2))
while [ $rest -gt 0 ]; do
    place=${1#c????:}
    if [ "$1" != "${1#cover:}" ]; then
        # What lies on a disk of its own is not shown by the one below: then that place is covered.
        while [ ! -d "$root$place" ]; do place=${place%/*}; done
        mount -t tmpfs -o mode=755,nosuid,nodev cover "$root$place"
        mkdir -p "$root${1#cover:}"
    elif [ "$1" != "${1#close:}" ]; then
        while ! mountpoint -q "$root$place"; do place=${place%/*}; done
        mount -o remount,bind,ro,nosuid,nodev "$root$place"
    elif [ -L "$1" ]; then
        mkdir -p "$root${1%/*}"; ln -s "$(readlink "$1")" "$root$1"
    else
        if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; : > "$root$1"; fi
        mount --bind "$1" "$root$1"
        mount -o remount,bind,ro,nosuid,nodev "$root$1"
    fi
    shift; rest=$((rest - 1))
done
mount --bind "$folder" "$root/sandbox"
mount -o remount,bind,nosuid,nodev "$root/sandbox"
if [ -n "$media" ]; then
    mkdir -p "$root/sandbox/media"
    mount --bind "$media" "$root/sandbox/media"
    mount -o remount,bind,ro,nosuid,nodev "$root/sandbox/media"
fi
for device in null zero full random urandom; do
    : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    ln -s "/proc/self/${link#*:}" "$root/dev/${link%:*}"
done
mount -t proc proc "$root/proc"
cd "$root"
pivot_root . old
umount -l /old
rmdir /old
mount -o remount,bind,ro /
cd /sandbox
export HOME=/sandbox PATH=/usr/local/bin:/usr/bin:/bin
"$@" || exit $?  # no exec: the first process, with which all others end, is not the program's
