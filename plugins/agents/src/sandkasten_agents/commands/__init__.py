"""Commands of agents and workflows."""
