"""Routes of agents, workflows and runs."""
