"""Runs in the sandbox: the program that comes on standard input.

Started as `python -I -u -c <this file> python|bash`, so it may import nothing of the project.
"""

import ast
import os
import signal
import sys
import tempfile
import traceback
import types

LONGEST_ARGUMENT = 100_000  # bytes; Linux takes 131,071


def bash(code: bytes) -> None:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; bash would hand that on
        signal.signal(ignored, signal.SIG_DFL)
    if len(code) < LONGEST_ARGUMENT and b"\0" not in code:
        os.execvp("bash", [b"bash", b"-c", code])
    with tempfile.TemporaryFile() as script:
        script.write(code)
        script.flush()
        os.set_inheritable(script.fileno(), True)
        os.execvp("bash", ["bash", f"/dev/fd/{script.fileno()}"])


def main() -> None:
    code = sys.stdin.buffer.read()
    if sys.argv[1] == "bash":
        bash(code)
    module = sys.modules["__main__"] = types.ModuleType(
        "__main__"
    )  # as pickle and typing look it up
    space = vars(module)
    try:
        body = ast.parse(code, "<code>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<code>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
            if value is not None:
                print(repr(value))
    except SystemExit:
        raise
    except BaseException:  # the program's own, whatever it is
        kind, value, trace = sys.exc_info()
        while trace and trace.tb_frame.f_code.co_filename != "<code>":
            trace = trace.tb_next
        sys.stdout.flush()
        traceback.print_exception(kind, value, trace)
        sys.exit(1)


main()
