"""Runs the Python program on standard input, in the sandbox.

Started as `python -I -u -c <this file>`, so it must not import modules of the project.
"""

import ast
import sys
import traceback
import types

code = sys.stdin.buffer.read()
program = types.ModuleType("__main__")
sys.modules["__main__"] = program  # pickle and typing look it up
try:
    body = ast.parse(code, "<code>").body
    last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
    exec(compile(ast.Module(body, []), "<code>", "exec"), vars(program))
    exec(compile(ast.Interactive(last), "<code>", "single"), vars(program))
except SystemExit:
    raise
except BaseException as error:  # any error of the program
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    sys.stdout.flush()
    traceback.print_exception(error.with_traceback(trace))
    sys.exit(1)
