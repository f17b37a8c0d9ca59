# Stands before every program behind the wall (tools/wall.py): LIMITS is given in front of it.
import resource

for _name, _most in LIMITS.items():  # type: ignore[name-defined] # noqa: F821
    _number = getattr(resource, _name)
    _hard = resource.getrlimit(_number)[1]
    _new = _most if _hard == resource.RLIM_INFINITY else min(_most, _hard)
    resource.setrlimit(_number, (_new, _new))
