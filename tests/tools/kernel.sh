#!/bin/sh
# Boots Linux as a program (user-mode-linux) with the files of this machine, and makes cgroups there.
cd "$(dirname "$0")/../.."
if [ $$ != 1 ]; then
    linux.uml root=/dev/root rootfstype=hostfs rootflags=/ rw mem=1G con=null con0=null,fd:1 init="$PWD/$0" | tee /dev/stderr | grep '1 passed' > /dev/null
    exit
fi
mount -t proc proc /proc
mount -t cgroup2 none /sys/fs/cgroup
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m pytest -p no:cacheprovider --color=no tests/tools/test_code.py -k cgroup
echo o > /proc/sysrq-trigger
sleep 9
