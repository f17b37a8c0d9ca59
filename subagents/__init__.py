"""Styles of executor: each is one function `run(u, env, tools, ...) -> Result`."""
