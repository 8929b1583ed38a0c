"""Agents in prompt files, the tools that give them a computer, and workflows of them."""
