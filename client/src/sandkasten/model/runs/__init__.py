"""Runs of agents and workflows, and the session keys they use."""
