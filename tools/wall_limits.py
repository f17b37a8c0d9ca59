# Stands before every program behind the wall (tools/wall.py): LIMITS is given in front of it.
import ctypes
import os
import resource

JOIN_SESSION_KEYRING = 1  # a new and empty one: the kernel hands on that of the user otherwise
KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number among the system calls

if _keyctl := KEYCTL.get(os.uname().machine) if os.uname().sysname == "Linux" else None:
    ctypes.CDLL(None).syscall(_keyctl, JOIN_SESSION_KEYRING, None)
for _name, _most in LIMITS.items():  # type: ignore[name-defined] # noqa: F821
    _number = getattr(resource, _name)
    _hard = resource.getrlimit(_number)[1]
    _new = _most if _hard == resource.RLIM_INFINITY else min(_most, _hard)
    resource.setrlimit(_number, (_new, _new))
