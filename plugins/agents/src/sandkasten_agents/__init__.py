"""Agents in prompt files, workflows of them, and their runs, as a plugin."""
