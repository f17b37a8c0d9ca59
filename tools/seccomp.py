"""The filter of system calls for the programs of models: what the kernel refuses them.

The filter names the calls that it refuses and allows all others. It refuses calls that no other
limit of the sandbox covers, and calls that no program needs. tools/sandbox.py builds the filter;
tools/sandbox_init.py installs it right before the program of the model starts.

The filter is itself a program, in the kernel's classic BPF (seccomp(2)). It has one register. It
loads a word of the system call into the register, compares it with a value, and jumps forward or
ends with a verdict.

>>> len(build("x86_64")) // INSTRUCTION_BYTES
108
"""

from __future__ import annotations

import errno
import struct
from functools import cache

Instruction = tuple[int, int, int, int]  # struct sock_filter: code, jt, jf, k
Numbers = tuple[int, int]  # of a system call: on x86_64, on aarch64

INSTRUCTION_FORMAT = "HBBI"
INSTRUCTION_BYTES = struct.calcsize(INSTRUCTION_FORMAT)

# Operations of BPF. All jumps skip instructions forward.
LOAD = 0x20  # a word of struct seccomp_data
JUMP_IF_EQUAL = 0x15
JUMP_IF_AT_LEAST = 0x35
JUMP_IF_ANY_BIT = 0x45
AND = 0x54
RETURN = 0x06

# Offsets in struct seccomp_data. Those of arguments read the lower 32 bits, on both machines.
CALL_NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
FOURTH_ARGUMENT = 40

RETURN_ERRNO = 0x50000
ALLOW = (RETURN, 0, 0, 0x7FFF0000)

COLUMNS = {"x86_64": 0, "aarch64": 1}  # of Numbers
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_ABI = 1 << 30  # x86_64 numbers its calls a second time from here on (x32)

NOT_PERMITTED: dict[str, Numbers] = {
    # A new namespace would give the program rights inside it.
    "unshare": (272, 97),
    "setns": (308, 268),
    # Memory and slots that the kernel counts for no process.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "landlock_create_ruleset": (444, 444),
    "inotify_init": (253, 26),  # aarch64 has only inotify_init1
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "mbind": (237, 235),
    "seccomp": (317, 277),
    # Keys of the user, and kernel memory for keys.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Parts of the kernel that attacks use and programs of models do not need.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),  # its queue would also pass by this filter
    "open_by_handle_at": (304, 265),  # opens files by number, without a path
}
NOT_SUPPORTED: dict[str, Numbers] = {
    # Extended attributes are memory that no limit of a memory disk counts. cp and sed continue
    # without them if they are "not supported", but not if they are "not permitted".
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
}
CLONE: Numbers = (56, 220)
CLONE3: Numbers = (435, 435)
MMAP: Numbers = (9, 222)
PRCTL: Numbers = (157, 167)
PRLIMIT: Numbers = (302, 261)
SOCKET: Numbers = (41, 198)
SOCKETPAIR: Numbers = (53, 199)

NEW_NAMESPACES = 0x7E020000 | 0x80  # the flags of clone(2) that make one
SHARED_MEMORY = 1 | 0x20  # MAP_SHARED and MAP_ANONYMOUS: no process is charged for it
# Options of prctl(2): its filters of system calls, and tables of futexes, are memory of no process.
REFUSED_OPTIONS = 22, 78  # PR_SET_SECCOMP, PR_FUTEX_HASH
SOCKET_FAMILIES = 1, 2, 10, 16  # unix, IPv4, IPv6, netlink


@cache
def build(machine: str) -> bytes:
    """The filter for a machine, as os.uname() names it: an array of struct sock_filter.

    Raises OSError for a machine whose numbers of system calls are not known here.
    """
    if machine not in COLUMNS:
        raise OSError(f"there is no filter of system calls for {machine}")
    column = COLUMNS[machine]
    instructions = [
        *_only_calls_of(AUDIT_ARCHITECTURES[machine]),
        *_refused_calls(column),
        *_no_new_namespaces(column),
        *_no_shared_memory(column),
        *_no_memory_by_prctl(column),
        *_only_own_limits(column),
        *_only_known_sockets(column),
        ALLOW,
    ]
    packed = [struct.pack(INSTRUCTION_FORMAT, *fields) for fields in instructions]
    return b"".join(packed)


def _only_calls_of(architecture: int) -> list[Instruction]:
    """Refuse calls by the numbers of another architecture or ABI: the rules would not see them."""
    is_known = JUMP_IF_EQUAL, 1, 0, architecture  # skips the verdict
    return [
        _load(ARCHITECTURE),
        is_known,
        _refuse(errno.EPERM),
        _load(CALL_NUMBER),
        *_if(JUMP_IF_AT_LEAST, OTHER_ABI, _refuse(errno.ENOSYS)),
    ]


def _refused_calls(column: int) -> list[Instruction]:
    rows: list[Instruction] = []
    for numbers in NOT_PERMITTED.values():
        rows += _if_call(numbers[column], _refuse(errno.EPERM))
    for numbers in NOT_SUPPORTED.values():
        rows += _if_call(numbers[column], _refuse(errno.EOPNOTSUPP))
    return rows


def _no_new_namespaces(column: int) -> list[Instruction]:
    """Refuse clone(2) with flags of namespaces. The flags of clone3(2) are in memory, where a
    filter cannot read them; it is reported as unknown, so that libraries use clone(2).
    """
    return [
        *_if_call(CLONE3[column], _refuse(errno.ENOSYS)),
        *_if_call(
            CLONE[column],
            _load(FIRST_ARGUMENT),
            *_if(JUMP_IF_ANY_BIT, NEW_NAMESPACES, _refuse(errno.EPERM)),
            ALLOW,
        ),
    ]


def _no_shared_memory(column: int) -> list[Instruction]:
    return _if_call(
        MMAP[column],
        _load(FOURTH_ARGUMENT),
        (AND, 0, 0, SHARED_MEMORY),
        *_if(JUMP_IF_EQUAL, SHARED_MEMORY, _refuse(errno.EPERM)),
        ALLOW,
    )


def _no_memory_by_prctl(column: int) -> list[Instruction]:
    """Refuse options of prctl(2) as a kernel does that does not know them."""
    refused: list[Instruction] = []
    for option in REFUSED_OPTIONS:
        refused += _if(JUMP_IF_EQUAL, option, _refuse(errno.EINVAL))
    return _if_call(PRCTL[column], _load(FIRST_ARGUMENT), *refused, ALLOW)


def _only_own_limits(column: int) -> list[Instruction]:
    """Allow prlimit(2) for PID 0, the caller, only: it could limit the first process."""
    return _if_call(
        PRLIMIT[column],
        _load(FIRST_ARGUMENT),
        *_if(JUMP_IF_EQUAL, 0, ALLOW),
        _refuse(errno.EPERM),
    )


def _only_known_sockets(column: int) -> list[Instruction]:
    known: list[Instruction] = []
    for family in SOCKET_FAMILIES:
        known += _if(JUMP_IF_EQUAL, family, ALLOW)
    verdict = [_load(FIRST_ARGUMENT), *known, _refuse(errno.EAFNOSUPPORT)]
    return [
        *_if_call(SOCKET[column], *verdict),
        *_if_call(SOCKETPAIR[column], *verdict),
    ]


def _load(offset: int) -> Instruction:
    """Load a word of struct seccomp_data into the register."""
    return LOAD, 0, 0, offset


def _refuse(error: int) -> Instruction:
    """End the system call with this errno."""
    return RETURN, 0, 0, RETURN_ERRNO | error


def _if(jump: int, value: int, *then: Instruction) -> list[Instruction]:
    """Run `then` only if the comparison of the register with the value is true."""
    return [(jump, 0, len(then), value), *then]


def _if_call(number: int, *then: Instruction) -> list[Instruction]:
    """Run `then` only for this system call. The register must hold the number of the call. `then`
    must end with a verdict, since it may load another word into the register.
    """
    return _if(JUMP_IF_EQUAL, number, *then)
