# The first process of a program; tools/sandbox.py gives it its rules as JSON. In the sandbox it
# copies the folder in, starts the program without privileges, kills what is left of it, and copies
# changes out. It writes a line of JSON and then the program's output to standard output. It must
# not import modules of the project.
from __future__ import annotations

import contextlib
import ctypes
import errno
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
if TYPE_CHECKING:  # importing typing takes as long as the rest
    from typing import Any

WORK, MEMORY_DISKS, MAX_SOCKETS = "/sandbox", ("/tmp", "/dev/shm"), 128
MAX_DEPTH = 200  # of folders; copying deeper ones would exceed the recursion limit
CHECK_S = 0.1  # between two checks of the memory of all processes
MS_REMOUNT = 32 | 2 | 4  # with nosuid and nodev
SET_DUMPABLE, SET_SECCOMP, NO_NEW_PRIVS = 4, 22, 38  # of prctl(2)
JOIN_SESSION_KEYRING = 1  # a new, empty one in place of the user's
NEW_USER, NEW_NAMESPACES = 0x10000000, 0x7E020000 | 0x80  # flags of clone(2)
# Column of REFUSED and of the calls after it, and audit number, by machine.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
REFUSED = {  # system calls that no limit covers or that no program needs
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
SHARED_MEMORY = 1 | 0x20  # MAP_SHARED and MAP_ANONYMOUS: no process is charged for it
FAMILIES = 1, 2, 10, 16  # of sockets: unix, IPv4, IPv6, netlink
libc = ctypes.CDLL(None, use_errno=True)


def filter_system_calls() -> None:
    """Installs a seccomp(2) filter. Each test precedes the rows that apply if it is true."""
    column, arch = MACHINES[os.uname().machine]
    load, equal, at_least, any_bit, mask, end = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    first, fourth = (load, 0, 0, 16), (load, 0, 0, 40)  # of the arguments

    def refuse(error: int) -> tuple[int, int, int, int]:
        return end, 0, 0, 0x50000 | error

    allow, eperm, enosys = (
        (end, 0, 0, 0x7FFF0000),
        refuse(errno.EPERM),
        refuse(errno.ENOSYS),
    )
    rows = [(load, 0, 0, 4), (equal, 1, 0, arch), eperm, (load, 0, 0, 0)]
    rows += [(at_least, 0, 1, 1 << 30), enosys]  # of another ABI

    def on(call: tuple[int, int], *then: tuple[int, int, int, int]) -> None:
        rows.extend([(equal, 0, len(then), call[column]), *then])

    for (
        name,
        call,
    ) in REFUSED.items():  # cp and sed continue if attributes are not supported
        on(call, refuse(errno.EOPNOTSUPP) if "xattr" in name else eperm)
    on(CLONE3, enosys)  # libraries then use clone
    on(CLONE, first, (any_bit, 0, 1, NEW_NAMESPACES), eperm, allow)
    on(
        MMAP,
        fourth,
        (mask, 0, 0, SHARED_MEMORY),
        (equal, 0, 1, SHARED_MEMORY),
        eperm,
        allow,
    )
    on(PRLIMIT, first, (equal, 0, 1, 0), allow, eperm)  # of itself only
    families = [row for family in FAMILIES for row in ((equal, 0, 1, family), allow)]
    for call in (SOCKET, SOCKETPAIR):
        on(call, first, *families, refuse(errno.EAFNOSUPPORT))
    calls = b"".join(struct.pack("HBBI", *row) for row in [*rows, allow])
    buffer = ctypes.create_string_buffer(calls)
    program = struct.pack("HxxxxxxP", len(calls) // 8, ctypes.addressof(buffer))
    checked("prctl", SET_SECCOMP, 2, program)


def checked(function: str, *arguments: int | bytes) -> None:
    """Calls a function of the C library. Raises OSError."""
    given = [a if isinstance(a, bytes) else ctypes.c_ulong(a) for a in arguments]
    if getattr(libc, function)(*given) != 0:
        raise OSError(ctypes.get_errno(), f"{function} {arguments[0]!r}")


def drop_privileges(root: bool, user: int) -> None:
    """Turns this process into the program's."""
    libc.syscall(
        REFUSED["keyctl"][MACHINES[os.uname().machine][0]], JOIN_SESSION_KEYRING, None
    )
    checked("prctl", SET_DUMPABLE, int(not root))
    with open(
        "/proc/self/oom_score_adj", "w"
    ) as file:  # when memory runs out, kill it first
        file.write("1000")
    if root:
        os.fchown(1, user, user)  # it can then open /dev/stdout and /dev/stderr
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:  # root only in its own namespace
        checked("unshare", NEW_USER)
        ids = f"{user} 0 1"
        for name, text in (("setgroups", "deny"), ("uid_map", ids), ("gid_map", ids)):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    checked("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir(WORK)


def start(rules: dict[str, Any]) -> tuple[int, int]:
    """Starts the program in its own process. Returns its PID and the pipe with its output."""
    output, writable = os.pipe()
    if pid := os.fork():
        os.close(writable)
        return pid, output
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setpgid(0, 0)  # `kill 0` of a program reaches only the program
        os.dup2(writable, 1)
        os.dup2(writable, 2)
        if rules["sandbox"]:
            drop_privileges(rules["root"], rules["user"])
        for name, most in rules["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (most, most))
        if rules["sandbox"]:
            filter_system_calls()
        for ignored in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):  # Python ignores them; bash inherits that
            signal.signal(ignored, signal.SIG_DFL)
        os.execvp(rules["run"][0], rules["run"])
    except (OSError, ValueError) as error:
        os.write(writable, str(error).encode())
    finally:
        os._exit(127)


def exceeds(max_bytes: int) -> bool:
    """Whether all processes together use too much memory; memory disks have their own limits."""
    pages = 0
    for pid in os.listdir("/proc"):
        if pid.isdecimal() and pid != "1":
            with contextlib.suppress(OSError, IndexError):
                threads = os.scandir(f"/proc/{pid}/task")
                # A thread that has ended reports 0 pages, even the main thread.
                pages += next(filter(None, map(resident_pages, threads)), 0)
    with open("/proc/net/sockstat") as file:
        sockets = int(file.read().split()[2])
    return sockets > MAX_SOCKETS or pages * resource.getpagesize() > max_bytes


def resident_pages(thread: os.DirEntry[str]) -> int:
    with open(f"{thread.path}/statm") as file:
        return int(file.read().split()[1])


def watch(program: int, output: int, rules: dict[str, Any]) -> tuple[bytes, str, int]:
    """Waits for the program and kills all its processes. Returns its output, why it ended, and its
    exit status.
    """
    printed, ended, status, max_output = bytearray(), "", -9, rules["output"]
    deadline = time.monotonic() + rules["timeout_s"]
    os.set_blocking(output, False)

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            printed.extend(chunk := os.read(output, 65536))
            return bool(chunk)
        return False

    while not ended:
        select.select([output], [], [], CHECK_S)
        if not read():
            time.sleep(0.002)  # the program may have closed its output and still run
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] == program:
                    status, ended = os.waitstatus_to_exitcode(done[1]), "end"
        if not ended and (time.monotonic() >= deadline or len(printed) > max_output):
            ended = "timeout"
        elif not ended and rules["sandbox"] and exceeds(rules["memory"]):
            ended = "memory"
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(-1 if os.getpid() == 1 else -program, signal.SIGKILL)
        while True:
            os.wait()
    while len(printed) <= max_output and read():
        pass
    ended = "flood" if len(printed) > max_output else ended
    return bytes(printed[:max_output]), ended, status if status >= 0 else 128 - status


def copy_in(rules: dict[str, Any]) -> None:
    """Copies the user's folder, the working directory, except where the sandbox has mounts."""
    shutil.copytree(".", WORK, symlinks=True, ignore=mounts, dirs_exist_ok=True)
    for path in contents() if rules["root"] else ():
        os.lchown(path, rules["user"], rules["user"])
    os.chmod(WORK, 0o1777)


def mounts(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.ismount(os.path.join(WORK, folder, name))]


def contents() -> dict[str, os.stat_result]:
    """The program's files and folders by path. Raises OSError for a path that is too long."""
    found = {}
    for here, folders, files in os.walk(WORK):
        folders[:] = {*folders}.difference(mounts(here, folders))
        if here.count("/") > MAX_DEPTH:
            raise OSError("too deep")
        paths = [os.path.join(here, name) for name in (*folders, *files)]
        found.update({path: os.lstat(path) for path in paths})
    return found


def limit(place: str, size: int, files: int) -> None:
    """Lets a memory disk grow by `size` bytes and `files` files."""
    disk = os.statvfs(place)
    size += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    options = f"size={size},nr_inodes={disk.f_files - disk.f_ffree + files}".encode()
    checked("mount", b"none", place.encode(), b"tmpfs", MS_REMOUNT, options)


def copy_out(before: dict[str, os.stat_result], max_bytes: int) -> None:
    """Copies changes to the user's folder, the working directory: regular files, folders, and links
    that stay inside. Follows no link: a path whose type changed is removed first. Raises OSError
    if the folder grew by more than `max_bytes`, including holes in files; then nothing is copied.
    """
    after = contents()
    if size_of(after) - size_of(before) > max_bytes:
        raise OSError("too large")
    for here, folders, files in os.walk("."):
        for path in (os.path.join(here, name) for name in (*folders, *files)):
            if file_type(path) != file_type(os.path.join(WORK, path)):
                (shutil.rmtree if file_type(path) == stat.S_IFDIR else os.unlink)(path)
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


def size_of(files: dict[str, os.stat_result]) -> int:
    return sum(about.st_size for about in files.values() if stat.S_ISREG(about.st_mode))


def file_type(path: str) -> int:
    return stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else 0


def stays_inside(path: str, link: str) -> bool:
    """Whether a link has `..` only at its start, where no other link can lead it out, and not too
    many.
    """
    target, depth = link.split("/"), path.count("/")
    up = target.count("..")
    return (
        up <= depth and set(target[:up]) <= {".."} and bool(target[up:] and target[0])
    )


def main(rules: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Returns the report and the program's output."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not rules["sandbox"]:
        printed, ended, status = watch(*start(rules), rules)
        return {"ended": ended, "status": status}, printed
    checked("prctl", SET_DUMPABLE, 0)
    os.set_inheritable(rules["folder"], False)
    os.fchdir(rules["folder"])
    copy_in(rules)
    os.chdir("/")
    for place, size in (
        (WORK, rules["added"]),
        *((disk, rules["tmp"]) for disk in MEMORY_DISKS),
    ):
        limit(place, size, rules["files"])
    before = contents()
    printed, ended, status = watch(*start(rules), rules)
    os.fchdir(rules["folder"])
    try:
        copy_out(before, rules["added"])
    except OSError:  # also if the user's disk is full
        ended = "disk"
    return {"ended": ended, "status": status}, printed


try:
    report, output = main(json.loads(sys.argv[1]))
except (OSError, ValueError) as problem:
    report, output = {"failed": str(problem)[:200]}, b""
sys.stdout.buffer.write(json.dumps(report).encode() + b"\n" + output)
