"""Runs behind the wall: the program that comes on standard input.

Started as `python -I -c <wall_limits.py + this file> python|bash`, so it may import nothing of the
project.
"""

import ast
import os
import sys
import traceback


def main() -> None:
    code = sys.stdin.buffer.read().decode()
    if sys.argv[1] == "bash":
        os.execvp("bash", ["bash", "-c", code])
    space = {"__name__": "__main__"}
    try:
        body = ast.parse(code, "<code>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<code>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
            if value is not None:
                print(repr(value))
    except Exception:
        kind, value, trace = sys.exc_info()
        while trace and trace.tb_frame.f_code.co_filename != "<code>":
            trace = trace.tb_next
        sys.stdout.flush()
        traceback.print_exception(kind, value, trace)
        sys.exit(1)


main()
