"""MiniGAIA: tasks whose facts are known, and a world that plays the sub-agents."""
