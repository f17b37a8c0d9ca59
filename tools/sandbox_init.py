# The first process of a program (tools/sandbox.py), which gives it its rules as JSON. In the
# sandbox it copies the folder in, starts the program without rights, ends all that is left of it,
# and copies out what changed. On standard output it writes a line of JSON and then what the program
# printed. It may import nothing of the project.
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long as the rest
    from typing import Any

WORK, MEMORY_DISKS, MAX_SOCKETS = "/sandbox", ("/tmp", "/dev/shm"), 128
MAX_DEPTH = 200  # deeper folders are not copied out: later copies go down by recursion
LOOK_S = 0.1  # between two looks at the memory of all processes
MS_REMOUNT = 32 | 2 | 4  # with nosuid and nodev
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, NO_NEW_PRIVS = 1, 4, 22, 38  # of prctl(2)
JOIN_SESSION_KEYRING = 1  # a new and empty one; else the program has the user's
NEW_USER, NEW_NAMESPACES = 0x10000000, 0x7E020000 | 0x80  # flags of clone(2)
# Column of REFUSED, audit number.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
REFUSED = {  # system calls that no limit covers, or that no program needs
    "unshare": (272, 97), "setns": (308, 268), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265), "vmsplice": (278, 75), "io_setup": (206, 0),
    "landlock_create_ruleset": (444, 444),
}  # fmt: skip
CLONE, CLONE3, MMAP, PRLIMIT = (56, 220), (435, 435), (9, 222), (302, 261)
SOCKET, SOCKETPAIR = (41, 198), (53, 199)
SHARED_MEMORY = 1 | 0x20  # MAP_SHARED and MAP_ANONYMOUS: counted in no process
FAMILIES = 1, 2, 10, 16  # of sockets: unix, IPv4, IPv6, netlink
EPERM, ENOSYS, EOPNOTSUPP, EAFNOSUPPORT = 1, 38, 95, 97
libc = ctypes.CDLL(None, use_errno=True)


def filter_system_calls() -> None:
    """By seccomp(2). Each test stands before the rows that apply where it is true."""
    column, arch = MACHINES[os.uname().machine]
    load, equal, at_least, any_bit, mask, end = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    first, fourth = (load, 0, 0, 16), (load, 0, 0, 40)  # of the arguments
    allow, eperm, enosys = (end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x50000 | EPERM), ENOSYS | 0x50000
    rows = [(load, 0, 0, 4), (equal, 1, 0, arch), eperm, (load, 0, 0, 0)]
    rows += [(at_least, 0, 1, 1 << 30), (end, 0, 0, enosys)]  # of another ABI

    def on(call: tuple[int, int], *then: tuple[int, int, int, int]) -> None:
        rows.extend([(equal, 0, len(then), call[column]), *then])

    for name, call in REFUSED.items():  # cp and sed go on where attributes are not supported
        on(call, (end, 0, 0, 0x50000 | EOPNOTSUPP) if "xattr" in name else eperm)
    on(CLONE3, (end, 0, 0, enosys))  # clone is tried instead
    on(CLONE, first, (any_bit, 0, 1, NEW_NAMESPACES), eperm, allow)
    on(MMAP, fourth, (mask, 0, 0, SHARED_MEMORY), (equal, 0, 1, SHARED_MEMORY), eperm, allow)
    on(PRLIMIT, first, (equal, 0, 1, 0), allow, eperm)  # of itself only
    families = [row for family in FAMILIES for row in ((equal, 0, 1, family), allow)]
    for call in (SOCKET, SOCKETPAIR):
        on(call, first, *families, (end, 0, 0, 0x50000 | EAFNOSUPPORT))
    calls = b"".join(struct.pack("HBBI", *row) for row in [*rows, allow])
    held = ctypes.create_string_buffer(calls)
    program = struct.pack("HxxxxxxP", len(calls) // 8, ctypes.addressof(held))
    table = ctypes.create_string_buffer(program)
    prctl(SET_SECCOMP, 2, ctypes.addressof(table))


def prctl(*arguments: int) -> None:
    if libc.prctl(*(ctypes.c_ulong(a) for a in arguments), *[ctypes.c_ulong(0)] * 3) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {arguments[0]}")


def drop_rights(root: bool, user: int) -> None:
    """The rest of this process is the program's."""
    libc.syscall(REFUSED["keyctl"][MACHINES[os.uname().machine][0]], JOIN_SESSION_KEYRING, None)
    prctl(SET_DUMPABLE, int(not root))
    with open("/proc/self/oom_score_adj", "w") as first:  # to end, where memory runs out
        first.write("1000")
    if root:
        os.fchown(1, user, user)  # so that it can open /dev/stdout and /dev/stderr
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:  # root only in a namespace of its own
        if libc.unshare(NEW_USER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        own = f"{user} 0 1"
        for file, text in (("setgroups", "deny"), ("uid_map", own), ("gid_map", own)):
            with open(f"/proc/self/{file}", "w") as about:
                about.write(text)
    prctl(NO_NEW_PRIVS, 1)
    os.chdir(WORK)


def start(rules: dict[str, Any]) -> tuple[int, int]:
    """The program, in a process of its own: its number, and where to read what it prints."""
    output, its_end = os.pipe()
    if pid := os.fork():
        os.close(its_end)
        return pid, output
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setpgid(0, 0)  # `kill 0` of a program means only itself
        os.dup2(its_end, 1)
        os.dup2(its_end, 2)
        if rules["sandbox"]:
            drop_rights(rules["root"], rules["user"])
        elif sys.platform == "linux":
            prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        for name, most in rules["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (most, most))
        if rules["sandbox"]:
            filter_system_calls()
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; bash would hand that on
            signal.signal(ignored, signal.SIG_DFL)
        os.execvp(rules["run"][0], rules["run"])
    except (OSError, ValueError) as error:
        os.write(its_end, str(error).encode())
    finally:
        os._exit(127)


def excess(most: int) -> bool:
    """Whether all processes together take too much. Files in memory have limits of their own."""
    pages = 0
    for pid in os.listdir("/proc"):
        if pid.isdecimal() and pid != "1":
            with contextlib.suppress(OSError, IndexError):
                pages += pages_of(f"/proc/{pid}/task")
    with open("/proc/net/sockstat") as file:
        sockets = int(file.read().split()[2])
    return sockets > MAX_SOCKETS or pages * resource.getpagesize() > most


def pages_of(tasks: str) -> int:
    """What a process takes. A thread that has ended shows nothing, the first one too."""
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/statm") as file:
            if pages := int(file.read().split()[1]):
                return pages
    return 0


def watch(program: int, output: int, rules: dict[str, Any]) -> tuple[bytes, str, int]:
    """What the program printed, why it ended, and its exit status. Nothing of it is left then."""
    printed, ended, status, most = bytearray(), "", None, rules["output"]
    deadline = time.monotonic() + rules["timeout_s"]
    os.set_blocking(output, False)

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            printed.extend(chunk := os.read(output, 65536))
            return bool(chunk)
        return False

    while not ended:
        select.select([output], [], [], LOOK_S)
        if not read():
            time.sleep(0.002)  # it may have closed its output and still run
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] == program:
                    status, ended = os.waitstatus_to_exitcode(done[1]), "end"
        if not ended and (time.monotonic() >= deadline or len(printed) > most):
            ended = "timeout"
        elif not ended and rules["sandbox"] and excess(rules["memory"]):
            ended = "memory"
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1 if os.getpid() == 1 else -program, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    while len(printed) <= most and read():
        pass
    ended = "flood" if len(printed) > most else ended
    status = 137 if status is None else 128 - status if status < 0 else status
    return bytes(printed[:most]), ended, status


def copy_in(rules: dict[str, Any]) -> None:
    """The user's folder, which is the working directory now, without what is mounted in it."""

    def mounted(here: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.ismount(os.path.join(WORK, here, name))]

    shutil.copytree(".", WORK, symlinks=True, ignore=mounted, dirs_exist_ok=True)
    for path in contents([]) if rules["root"] else ():
        os.lchown(path, rules["user"], rules["user"])
    os.chmod(WORK, 0o1777)


def contents(lost: list[OSError]) -> dict[str, os.stat_result]:
    """What is in the folder of the program, by its path. What cannot be listed is `lost`."""
    found = {}
    for here, folders, files in os.walk(WORK, onerror=lost.append):
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(here, name))]
        if here.count("/") >= MAX_DEPTH and folders:
            lost.append(OSError("too deep"))
            folders.clear()
        paths = [os.path.join(here, name) for name in (*folders, *files)]
        found.update({path: os.lstat(path) for path in paths})
    return found


def limit(place: str, size: int, files: int) -> None:
    """A disk in memory may grow by `size` bytes and `files` files."""
    disk = os.statvfs(place)
    size += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    options = f"size={size},nr_inodes={disk.f_files - disk.f_ffree + files}".encode()
    if libc.mount(b"none", place.encode(), b"tmpfs", MS_REMOUNT, options) != 0:
        raise OSError(ctypes.get_errno(), f"mount {place}")


def copy_out(before: dict[str, os.stat_result], most: int) -> bool:
    """What the program changed, into the user's folder, which is the working directory now: regular
    files, folders, and links that stay inside. No link is followed: what changed its kind is
    removed first. Returns False if something is lost: a path is too deep, or the folder grew by
    more than `most` bytes, the holes in files counted (then nothing is copied).
    """
    lost: list[OSError] = []
    after = contents(lost)
    if size_of(after) - size_of(before) > most:
        return False
    for here, folders, files in os.walk("."):
        for path in (os.path.join(here, name) for name in (*folders, *files)):
            if kind(path) != kind(os.path.join(WORK, path)):
                (shutil.rmtree if kind(path) == stat.S_IFDIR else os.unlink)(path)
    for source, about in after.items():
        path, old = os.path.relpath(source, WORK), before.get(source)
        if stat.S_ISDIR(about.st_mode):
            os.makedirs(path, exist_ok=True)
        elif old and (old.st_ino, old.st_ctime_ns) == (about.st_ino, about.st_ctime_ns):
            continue
        elif stat.S_ISREG(about.st_mode):
            shutil.copy2(source, path)
            os.chmod(path, 0o755 if about.st_mode & 0o100 else 0o644)
        elif stat.S_ISLNK(about.st_mode):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if stays_inside(path, os.readlink(source)):
                os.symlink(os.readlink(source), path)
    return not lost


def size_of(files: dict[str, os.stat_result]) -> int:
    return sum(about.st_size for about in files.values() if stat.S_ISREG(about.st_mode))


def kind(path: str) -> int:
    return stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else 0


def stays_inside(path: str, link: str) -> bool:
    """Whether all `..` are at its beginning and stay in the folder; a later one could follow a link
    out.
    """
    target, depth = link.split("/"), path.count("/")
    up = target.count("..")
    return up <= depth and set(target[:up]) <= {".."} and bool(target[up:] and target[0])


def main(rules: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A report, and what the program printed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not rules["sandbox"]:
        printed, ended, status = watch(*start(rules), rules)
        return {"ended": ended, "status": status}, printed
    prctl(SET_DUMPABLE, 0)
    os.set_inheritable(rules["folder"], False)
    os.fchdir(rules["folder"])
    copy_in(rules)
    os.chdir("/")
    for place, size in ((WORK, rules["added"]), *((disk, rules["tmp"]) for disk in MEMORY_DISKS)):
        limit(place, size, rules["files"])
    before, whole = contents([]), False
    printed, ended, status = watch(*start(rules), rules)
    os.fchdir(rules["folder"])
    with contextlib.suppress(OSError, RecursionError):  # the user's disk is full, for one
        whole = copy_out(before, rules["added"])
    return {"ended": ended if whole else "disk", "status": status}, printed


try:
    report, shown = main(json.loads(sys.argv[1]))
except (OSError, ValueError) as problem:
    report, shown = {"failed": str(problem)[:200]}, b""
sys.stdout.buffer.write(json.dumps(report).encode() + b"\n" + shown)
