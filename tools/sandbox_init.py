# The first process of a sandbox (tools/sandbox.py), which gives it its rules as JSON. It copies the
# folder in, starts the program without rights, ends all that is left of it, and copies out what
# changed. It may import nothing of the project.
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long as the rest
    from typing import IO, Any

WORK, MEMORY_DISKS, MAX_PROCESSES, MAX_SOCKETS = "/sandbox", ("/tmp", "/dev/shm"), 200, 400
MS_REMOUNT = 32 | 2 | 4  # with nosuid and nodev
SET_DUMPABLE, NO_NEW_PRIVS, SET_SECCOMP, AMBIENT, CLEAR_ALL = 4, 38, 22, 47, 4  # of prctl(2)
JOIN_SESSION_KEYRING = 1  # a new and empty one: the kernel hands on that of the user otherwise
NEW_USER, NEW_NAMESPACES = 0x10000000, 0x7E020000 | 0x80  # flags of clone(2)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, audit number
REFUSED = {  # system calls that no limit covers, or that no program needs
    "unshare": (272, 97), "setns": (308, 268), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265), "vmsplice": (278, 75),
}  # fmt: skip
CLONE, CLONE3, SOCKET, MMAP, PRLIMIT = (56, 220), (435, 435), (41, 198), (9, 222), (302, 261)
SHARED_MEMORY = 1 | 0x20  # MAP_SHARED and MAP_ANONYMOUS: of no process's size
FAMILIES = 1, 2, 10, 16  # of sockets: unix, IPv4, IPv6, netlink
EPERM, ENAMETOOLONG, ENOSYS, EAFNOSUPPORT = 1, 36, 38, 97
libc = ctypes.CDLL(None, use_errno=True)


def system_calls() -> bytes:
    """A seccomp filter, see seccomp(2). Every test is followed by what to do if it holds."""
    column, arch = MACHINES[os.uname().machine]
    load, equal, at_least, any_bit, mask, end = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    first, fourth = 16, 40  # where an argument is
    refuse, allow = 0x50000, 0x7FFF0000
    rows = [(load, 0, 0, 4), (equal, 1, 0, arch), (end, 0, 0, refuse | EPERM), (load, 0, 0, 0)]
    rows += [(at_least, 0, 1, 1 << 30), (end, 0, 0, refuse | ENOSYS)]  # of another ABI
    for numbers in REFUSED.values():
        rows += [(equal, 0, 1, numbers[column]), (end, 0, 0, refuse | EPERM)]
    rows += [(equal, 0, 1, CLONE3[column]), (end, 0, 0, refuse | ENOSYS)]  # clone is tried instead
    rows += [(equal, 0, 5, MMAP[column]), (load, 0, 0, fourth)]
    rows += [(mask, 0, 0, SHARED_MEMORY), (equal, 0, 1, SHARED_MEMORY)]
    rows += [(end, 0, 0, refuse | EPERM), (end, 0, 0, allow)]
    rows += [(equal, 0, 4, PRLIMIT[column]), (load, 0, 0, first), (equal, 0, 1, 0)]
    rows += [(end, 0, 0, allow), (end, 0, 0, refuse | EPERM)]  # of itself only
    rows += [(equal, 0, 4, CLONE[column]), (load, 0, 0, first), (any_bit, 0, 1, NEW_NAMESPACES)]
    rows += [(end, 0, 0, refuse | EPERM), (end, 0, 0, allow)]
    rows += [(equal, 0, 2 + 2 * len(FAMILIES), SOCKET[column]), (load, 0, 0, first)]
    for family in FAMILIES:
        rows += [(equal, 0, 1, family), (end, 0, 0, allow)]
    rows += [(end, 0, 0, refuse | EAFNOSUPPORT), (end, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def prctl(*arguments: int) -> None:
    if libc.prctl(*(ctypes.c_ulong(a) for a in arguments), *[ctypes.c_ulong(0)] * 3) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {arguments[0]}")


def become_the_program(root: bool, user: int) -> None:
    """Without rights and beyond them. The rest of this process is the program's."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    libc.syscall(REFUSED["keyctl"][MACHINES[os.uname().machine][0]], JOIN_SESSION_KEYRING, None)
    prctl(AMBIENT, CLEAR_ALL)
    if root:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:  # of its own namespace, without rights in that of the first process
        prctl(SET_DUMPABLE, 1)
        if libc.unshare(NEW_USER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        own = f"{user} 0 1"
        for file, text in (("setgroups", "deny"), ("uid_map", own), ("gid_map", own)):
            with open(f"/proc/self/{file}", "w") as about:
                about.write(text)
    prctl(NO_NEW_PRIVS, 1)
    os.setpgid(0, 0)  # `kill 0` of a program means only itself
    os.chdir(WORK)


def start(rules: dict[str, Any]) -> int:
    """The program, in a process of its own."""
    if pid := os.fork():
        return pid
    try:
        become_the_program(rules["root"], rules["user"])
        for name, most in rules["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (most, most))
        calls = system_calls()
        held = ctypes.create_string_buffer(calls)
        program = struct.pack("HxxxxxxP", len(calls) // 8, ctypes.addressof(held))
        table = ctypes.create_string_buffer(program)
        prctl(SET_SECCOMP, 2, ctypes.addressof(table))
        os.execv(rules["run"][0], rules["run"])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def excess(most: int) -> bool:
    """Whether all processes together take too much. Files in memory have limits of their own."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    with open("/proc/net/sockstat") as file:
        sockets = int(file.read().split()[2])
    too_many = len(pids) > MAX_PROCESSES or sockets > MAX_SOCKETS
    return too_many or pages * resource.getpagesize() > most


def watch(program: int, most: int) -> tuple[str, int]:
    """Why the program ended, and its exit status. Nothing of it is left then."""
    ended, status, watched = "end", None, {signal.SIGCHLD, signal.SIGTERM}
    while status is None:
        told = signal.sigtimedwait(watched, 0.1)
        if told and told.si_signo == signal.SIGTERM and told.si_pid == 0:  # it says: from outside
            break
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] == program:
                    status = os.waitstatus_to_exitcode(done[1])
        if status is None and excess(most):
            ended = "memory"
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return ended, 137 if status is None else 128 - status if status < 0 else status


def contents() -> tuple[dict[str, tuple[int, int, int]], bool]:
    """What changes with each file of the folder, by path, and whether some could not be told."""
    found, waiting, here, lost = {}, [""], os.stat(WORK).st_dev, False
    while waiting:
        inside = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(WORK, inside)))
            for entry in entries:
                path, about = os.path.join(inside, entry.name), entry.stat(follow_symlinks=False)
                if about.st_dev == here:  # else the media or a virtual environment
                    folder = entry.is_dir(follow_symlinks=False)
                    waiting += [path] if folder else []
                    changed = (about.st_mode, about.st_ino, 0 if folder else about.st_ctime_ns)
                    found[path] = changed
        except OSError as error:  # it is gone, or deeper than a path can tell
            lost = lost or error.errno == ENAMETOOLONG
    return found, lost


def copy_out(out: IO[bytes], before: dict[str, Any], ended: str, status: int) -> None:
    """A line of JSON, then the changed files as a tar archive."""
    after, lost = contents()
    kept = {"", *after}
    gone = [p for p in before if p not in kept and os.path.dirname(p) in kept]
    report = {"ended": ended, "status": status, "gone": gone, "lost": lost}
    out.write(json.dumps(report).encode() + b"\n")
    if changed := [path for path in after if after[path] != before.get(path)]:
        import tarfile

        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in changed:
                archive.inodes = {}  # type: ignore[attr-defined]  # a hard link is a file
                archive.add(os.path.join(WORK, path), path, recursive=False)


def main(rules: dict[str, Any], out: IO[bytes]) -> None:
    for held in {rules["out"], rules["in"]} - {None}:
        os.set_inheritable(held, False)
    prctl(SET_DUMPABLE, 0)
    for place in (WORK, *MEMORY_DISKS):
        inodes = f"nr_inodes={rules['inodes']}".encode()
        if libc.mount(b"none", place.encode(), b"tmpfs", MS_REMOUNT, inodes) != 0:
            raise OSError(ctypes.get_errno(), f"mount {place}")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if rules["in"] is not None:
        tar = ["tar", "-x", "-p", "--no-same-owner", "-f", "-", "-C", WORK]
        user = rules["user"] if rules["root"] else None
        subprocess.run(tar, stdin=rules["in"], check=True, user=user, group=user)
        os.close(rules["in"])
    before, _ = contents()
    ended, status = watch(start(rules), rules["memory"])
    most = rules["size"] + 2048 * rules["inodes"]  # with heads; files may have holes
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with contextlib.suppress(OSError):  # an archive that is cut off tells it
        copy_out(out, before, ended, status)
        out.flush()


RULES = json.loads(sys.argv[1])
with os.fdopen(RULES["out"], "wb") as report:
    try:
        main(RULES, report)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        report.write(json.dumps({"failed": str(error)}).encode())
