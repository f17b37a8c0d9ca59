"""One file a kind of sub-agent, each a function `run(job) -> Result`. executor.py runs them."""
