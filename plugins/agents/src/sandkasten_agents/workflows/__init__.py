"""Workflows of agents: read from YAML, validated, drawn, and run so that they survive a crash.

`workflow_file` reads and checks a file, `workflow_runner` runs it, `expressions` evaluates its
expressions, `workflow_graph` draws it. This package does not know models, sandboxes or where runs
are stored.
"""
