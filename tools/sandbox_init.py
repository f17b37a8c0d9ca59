"""The first process of a program: it copies, limits, starts, watches, kills, and copies back.

tools/sandbox.py passes this text to `python -c`, and the rules of the program as JSON in the first
argument. In a sandbox, this process

1. copies the user's folder to /sandbox, a disk in memory, and limits how much that disk may grow;
2. starts the program in a process of its own, without privileges, limited, and with fewer system
   calls;
3. waits until the program ends or exceeds a limit, and kills whatever is left of it;
4. copies the changes back to the user's folder.

It reaches the user's folder by a descriptor that it was given, because the sandbox does not mount
that folder. It writes a line of JSON and then the program's output to standard output.

This text starts in every sandbox, so it imports as little as possible. It cannot import modules of
the project, which are not in the sandbox.
"""

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
if TYPE_CHECKING:  # importing typing takes as long as the rest
    from collections.abc import Iterator
    from typing import Any, NoReturn

WORK = "/sandbox"  # the program's folder, a copy of the user's
MEMORY_DISKS = "/tmp", "/dev/shm"
TERMINALS = "/dev/pts"
MAX_TERMINALS = 16
MAX_SOCKETS = 128
MAX_LOCKS = 4_000  # on files and parts of them
MAX_MAPPINGS = 65_530  # of a process, by default of the kernel
MAPPING_BYTES = 512  # what the kernel keeps for a mapping, at most
FORK_BYTES = 64  # and for each process that has it from a fork
OF_PROCESS = "VmRSS", "VmSwap", "VmPTE", "HugetlbPages"  # in kB; PTE: page tables
MAX_DEPTH = 200  # of folders; copying deeper ones would exceed the recursion limit
CHECK_S = 0.1  # between two checks of the memory of all processes
READ_BYTES = 65536
CANNOT_START = 127  # the exit status of a program that cannot be started
KILLED = -signal.SIGKILL

# Numbers of the kernel's interface.
MS_REMOUNT = 32 | 2  # with nosuid
MS_NODEV = 4
MS_NOEXEC = 8
SET_DUMPABLE = 4  # this and the next two are options of prctl(2)
SET_SECCOMP = 22
NO_NEW_PRIVS = 38
SECCOMP_FILTER = 2
BPF_INSTRUCTION_BYTES = 8
NEW_USER = 0x10000000  # of unshare(2)
KEYCTL = {"x86_64": 250, "aarch64": 219}  # the C library has no function for it
JOIN_SESSION_KEYRING = 1  # a new, empty one in place of the user's

libc = ctypes.CDLL(None, use_errno=True)


def main(rules: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Returns the report and the program's output."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if rules["sandbox"]:
        output, ended, status = run_on_a_copy(rules)
    else:
        output, ended, status = watch(*start(rules), rules)
    return {"ended": ended, "status": status}, output


def run_on_a_copy(rules: dict[str, Any]) -> tuple[bytes, str, int]:
    """Runs the program in a copy of the user's folder, and copies its changes back. Returns its
    output, why it ended, and its exit status.
    """
    checked("prctl", SET_DUMPABLE, 0)  # the program cannot trace or read this process
    folder = rules["folder_fd"]
    os.set_inheritable(folder, False)
    os.fchdir(folder)
    copy_in(rules)
    os.chdir("/")
    limit_growth(WORK, rules["max_added_bytes"], rules["max_added_files"])
    for disk in MEMORY_DISKS:
        limit_growth(disk, rules["tmp_bytes"], rules["max_added_files"])
    limit_terminals(MAX_TERMINALS)
    before = contents()
    output, ended, status = watch(*start(rules), rules)
    os.fchdir(folder)
    try:
        copy_out(before, rules["max_added_bytes"])
    except OSError:  # also if the user's disk is full
        ended = "disk"
    return output, ended, status


# ---- start the program ---------------------------------------------------------------------------


def start(rules: dict[str, Any]) -> tuple[int, int]:
    """Starts the program in its own process. Returns its PID and the pipe with its output."""
    output, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_program(rules, writable)
    os.close(writable)
    return pid, output


def become_program(rules: dict[str, Any], output: int) -> NoReturn:
    """Turns this process into the program, or ends it. The order matters: a step may need what a
    later one takes away.
    """
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setpgid(0, 0)  # `kill 0` of a program reaches only the program
        os.dup2(output, 1)
        os.dup2(output, 2)
        if rules["sandbox"]:
            drop_privileges(rules["started_by_root"], rules["user"])
        set_limits(rules["limits"])
        if rules["sandbox"]:
            filter_system_calls(bytes.fromhex(rules["filter"]))
        # Python ignores these two, and programs would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(rules["command"][0], rules["command"])
    except (OSError, ValueError) as error:
        os.write(output, str(error).encode())
    finally:  # whatever happens: this process must not go on as the first one
        os._exit(CANNOT_START)


def drop_privileges(started_by_root: bool, user: int) -> None:
    """Makes this process one of a user who owns nothing, and who cannot get other rights."""
    libc.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)
    # Started by a user, the process must be dumpable to write its uid_map below.
    checked("prctl", SET_DUMPABLE, int(not started_by_root))
    write("/proc/self/oom_score_adj", "1000")  # when memory runs out, kill it first
    if started_by_root:
        os.fchown(1, user, user)  # it can then open /dev/stdout and /dev/stderr
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:  # it is root only in its own namespace
        checked("unshare", NEW_USER)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} 0 1")
        write("/proc/self/gid_map", f"{user} 0 1")
    checked("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)  # not by programs such as su either
    os.chdir(WORK)


def set_limits(limits: dict[str, int]) -> None:
    """Sets resource limits by name. A lower one that holds already stays."""
    for name, wanted in limits.items():
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (most, most))


def filter_system_calls(instructions: bytes) -> None:
    """Installs a filter of tools/seccomp.py. It holds for all children and cannot be removed."""
    buffer = ctypes.create_string_buffer(instructions)
    count = len(instructions) // BPF_INSTRUCTION_BYTES
    program = struct.pack(
        "HxxxxxxP", count, ctypes.addressof(buffer)
    )  # struct sock_fprog
    checked("prctl", SET_SECCOMP, SECCOMP_FILTER, program)


def checked(function: str, *arguments: int | bytes) -> None:
    """Calls a function of the C library. Raises OSError."""
    given = [a if isinstance(a, bytes) else ctypes.c_ulong(a) for a in arguments]
    if getattr(libc, function)(*given) != 0:
        raise OSError(ctypes.get_errno(), f"{function} {arguments[0]!r}")


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# ---- watch the program ---------------------------------------------------------------------------


def watch(program: int, output: int, rules: dict[str, Any]) -> tuple[bytes, str, int]:
    """Waits for the program and kills all its processes. Returns its output, why it ended, and its
    exit status.
    """
    printed = bytearray()
    max_output = rules["max_output_bytes"]
    deadline = time.monotonic() + rules["timeout_s"]
    next_check = 0.0
    os.set_blocking(output, False)
    status = None
    ended = ""
    while not ended:
        select.select([output], [], [], CHECK_S)
        if not read(output, printed):
            time.sleep(0.002)  # the program may have closed its output and still run
        status = reap(program)
        if status is not None:
            ended = "end"
        elif time.monotonic() >= deadline or len(printed) > max_output or is_alone():
            ended = "timeout"
        elif rules["sandbox"] and time.monotonic() >= next_check:
            ended = "memory" if exceeds(rules) else ""
            next_check = time.monotonic() + CHECK_S
    kill_all(program)
    while len(printed) <= max_output and read(output, printed):
        pass
    if len(printed) > max_output:
        ended = "flood"
    if status is None:
        status = KILLED
    return bytes(printed[:max_output]), ended, as_of_a_shell(status)


def is_alone() -> bool:
    """Whether nobody reads the report any more: what started this process was killed. The signal
    of bubblewrap's --die-with-parent is forgotten when `files_of` changes the user.
    """
    report = select.poll()
    report.register(sys.stdout, 0)  # an error is always reported
    return bool(report.poll(0))


def read(output: int, printed: bytearray) -> bool:
    """Adds what the pipe holds now. Returns whether it held anything."""
    try:
        chunk = os.read(output, READ_BYTES)
    except BlockingIOError:
        return False
    printed.extend(chunk)
    return bool(chunk)


def reap(program: int) -> int | None:
    """Collects all children that have ended; those of the program become ours when their parents
    end. Returns the exit status of the program if it is one of them.
    """
    status = None
    with contextlib.suppress(ChildProcessError):
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == program:
                status = os.waitstatus_to_exitcode(wait_status)
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
    return status


def kill_all(program: int) -> None:
    """Kills every process of the program and waits for all. As PID 1 this process is the only one
    of the sandbox that -1 leaves out. Without a sandbox, -1 would be all processes of the user.
    """
    everyone = -1 if os.getpid() == 1 else -program
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(everyone, signal.SIGKILL)
        while True:
            os.wait()


def as_of_a_shell(status: int) -> int:
    """An exit status as shells report it: 128 and the number of the signal that killed it."""
    return status if status >= 0 else 128 - status


def exceeds(rules: dict[str, Any]) -> bool:
    """Whether all processes together use too much memory, with what the kernel keeps for their
    mappings, or have too many sockets or locks, which are memory of no process. Memory disks have
    their own limits.
    """
    if open_sockets() > MAX_SOCKETS or lines_of("/proc/locks", MAX_LOCKS) > MAX_LOCKS:
        return True
    used = 0
    pids = [pid for pid in os.listdir("/proc") if pid.isdecimal() and pid != "1"]
    mapping_bytes = MAPPING_BYTES + FORK_BYTES * len(pids)
    with files_of(rules):
        for pid in pids:
            if used > rules["max_memory_bytes"]:
                return True
            with contextlib.suppress(OSError):  # it may have ended
                memory_bytes, mappings = size_of_process(pid)
                used += memory_bytes + mappings * mapping_bytes
    return bool(used > rules["max_memory_bytes"])


def size_of_process(pid: str) -> tuple[int, int]:
    """The bytes of its memory and page tables, and the number of its mappings. All its threads
    share them, but a thread that has ended reports none, even the main thread.
    """
    for thread in os.scandir(f"/proc/{pid}/task"):
        with open(f"{thread.path}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        if "VmRSS" not in fields:
            continue
        kilobytes = sum(int(fields.get(key, "0").split()[0]) for key in OF_PROCESS)
        try:
            mappings = lines_of(f"{thread.path}/maps", MAX_MAPPINGS)
        except PermissionError:  # a program can refuse to be read
            mappings = MAX_MAPPINGS
        return kilobytes * 1024, mappings
    return 0, 0


@contextlib.contextmanager
def files_of(rules: dict[str, Any]) -> Iterator[None]:
    """Opens files as the user of the program, who alone may read what it has mapped. If a user
    started the program, this process has all rights on it.
    """
    user = rules["user"] if rules["started_by_root"] else 0
    libc.setfsgid(user)
    libc.setfsuid(user)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)


def lines_of(path: str, most: int) -> int:
    """The number of lines, which are not counted further than a little beyond `most`."""
    count = 0
    with open(path, "rb", buffering=0) as file:
        while count <= most and (chunk := file.read(READ_BYTES)):
            count += chunk.count(b"\n")
    return count


def open_sockets() -> int:
    with open("/proc/net/sockstat") as file:
        return int(file.read().split()[2])  # "sockets: used N"


# ---- copy the folder in and out ------------------------------------------------------------------


def copy_in(rules: dict[str, Any]) -> None:
    """Copies the user's folder, the working directory, except where the sandbox has mounts."""
    shutil.copytree(".", WORK, symlinks=True, ignore=mounts, dirs_exist_ok=True)
    if rules["started_by_root"]:
        for path in contents():
            os.lchown(path, rules["user"], rules["user"])
    os.chmod(WORK, 0o1777)


def mounts(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.ismount(os.path.join(WORK, folder, name))]


def contents() -> dict[str, os.stat_result]:
    """The program's files and folders by path. Raises OSError for a path that is too long."""
    found = {}
    for here, folders, files in os.walk(WORK):
        folders[:] = set(folders).difference(mounts(here, folders))
        if here.count("/") > MAX_DEPTH:
            raise OSError("too deep")
        for name in (*folders, *files):
            path = os.path.join(here, name)
            found[path] = os.lstat(path)
    return found


def limit_growth(disk: str, max_bytes: int, max_files: int) -> None:
    """Lets a memory disk grow by so many bytes and files, and no more."""
    now = os.statvfs(disk)
    size = (now.f_blocks - now.f_bfree) * now.f_frsize + max_bytes
    files = now.f_files - now.f_ffree + max_files
    options = f"size={size},nr_inodes={files}".encode()
    checked("mount", b"none", disk.encode(), b"tmpfs", MS_REMOUNT | MS_NODEV, options)


def limit_terminals(most: int) -> None:
    """A pseudoterminal has buffers in the kernel, and the system has only some thousands."""
    options = f"max={most},mode=620,ptmxmode=666".encode()
    flags = MS_REMOUNT | MS_NOEXEC
    checked("mount", b"none", TERMINALS.encode(), b"devpts", flags, options)


def copy_out(before: dict[str, os.stat_result], max_bytes: int) -> None:
    """Copies changes to the user's folder, the working directory: regular files, folders, and links
    that stay inside. Follows no link: a path whose type changed is removed first. Raises OSError
    if the folder grew by more than `max_bytes`, including holes in files; then nothing is copied.
    """
    after = contents()
    if size_of(after) - size_of(before) > max_bytes:
        raise OSError("too large")
    remove_what_changed_its_type()
    for source, about in after.items():
        path = os.path.relpath(source, WORK)
        if stat.S_ISDIR(about.st_mode):
            os.makedirs(path, exist_ok=True)
        elif source in before and is_same(before[source], about):
            continue
        elif stat.S_ISREG(about.st_mode):
            shutil.copy2(source, path)
            os.chmod(path, 0o755 if about.st_mode & stat.S_IXUSR else 0o644)
        elif stat.S_ISLNK(about.st_mode):
            copy_link(source, path)


def remove_what_changed_its_type() -> None:
    """Removes from the user's folder what the program removed, or replaced by another type."""
    for here, folders, files in os.walk("."):
        for name in (*folders, *files):
            path = os.path.join(here, name)
            kind = file_type(path)
            if kind == file_type(os.path.join(WORK, path)):
                continue
            if kind == stat.S_IFDIR:
                shutil.rmtree(path)
            else:
                os.unlink(path)


def is_same(old: os.stat_result, new: os.stat_result) -> bool:
    """Whether a file is unchanged. A program can set st_mtime, but not st_ctime."""
    return old.st_ino == new.st_ino and old.st_ctime_ns == new.st_ctime_ns


def copy_link(source: str, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    target = os.readlink(source)
    if stays_inside(path, target):
        os.symlink(target, path)


def size_of(files: dict[str, os.stat_result]) -> int:
    return sum(about.st_size for about in files.values() if stat.S_ISREG(about.st_mode))


def file_type(path: str) -> int:
    """The type of a file, as in st_mode; 0 if there is none."""
    return stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else 0


def stays_inside(path: str, link: str) -> bool:
    """Whether a link stays in the program's folder. `..` may only be at its start, where no other
    link can lead it out, and not more often than the path is deep. It must be relative, and name
    something below.
    """
    target = link.split("/")
    up = target.count("..")
    is_relative = target[0] != ""
    only_at_the_start = all(part == ".." for part in target[:up])
    names_something = len(target) > up
    not_too_far = up <= path.count("/")
    return is_relative and only_at_the_start and names_something and not_too_far


if __name__ == "__main__":
    try:
        report, printed = main(json.loads(sys.argv[1]))
    except (OSError, ValueError) as problem:
        report, printed = {"failed": str(problem)[:200]}, b""
    sys.stdout.buffer.write(json.dumps(report).encode() + b"\n" + printed)
