"""Training the main agent with DA-GRPO, section 3.3 of arXiv 2606.13707."""
