"""Workflows of agents: read from YAML, checked, drawn, and carried out so that a crash is survived.

`definition` reads and checks a file, `runner` carries it out, `expressions` evaluates what it says,
`graph` draws it. Nothing here knows a model, a sandbox or where runs are kept.
"""
