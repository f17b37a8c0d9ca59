"""Runs the Python program on standard input, in the sandbox.

It prints the value of the last expression, as a REPL does. Of an error it prints only the part of
the traceback that is in the program. tools/execution.py starts it as `python -I -u -c <this file>`,
so it must not import modules of the project.
"""

import ast
import sys
import traceback
import types

NAME = "<code>"  # the program's file name in a traceback


def main() -> None:
    code = sys.stdin.buffer.read()
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program  # pickle and typing look it up
    try:
        run(code, program)
    except SystemExit:
        raise
    except BaseException as error:  # any error of the program
        sys.stdout.flush()
        traceback.print_exception(error.with_traceback(part_in_program(error)))
        sys.exit(1)


def run(code: bytes, program: types.ModuleType) -> None:
    statements = ast.parse(code, NAME).body
    last: list[ast.stmt] = []
    if statements and isinstance(statements[-1], ast.Expr):
        last = [statements.pop()]
    names = vars(program)
    exec(compile(ast.Module(statements, []), NAME, "exec"), names)
    # The mode "single" prints the value of an expression.
    exec(compile(ast.Interactive(last), NAME, "single"), names)


def part_in_program(error: BaseException) -> types.TracebackType | None:
    """The traceback from the first line of the program on; None for an error before it starts."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
