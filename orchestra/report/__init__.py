"""What a run did: its page, its equations, and what it cost. All of it only reads run folders."""
