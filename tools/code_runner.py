"""Runs in the sandbox: the Python program that comes on standard input.

Started as `python -I -u -c <this file>`, so it may import nothing of the project.
"""

import ast
import sys
import traceback
import types


def main() -> None:
    code = sys.stdin.buffer.read()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # as pickle and typing look it up
    space = vars(module)
    try:
        body = ast.parse(code, "<code>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<code>", "exec"), space)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), "<code>", "eval"), space))
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
