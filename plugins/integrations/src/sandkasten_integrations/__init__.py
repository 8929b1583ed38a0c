"""Adapters that let agent frameworks use our sandboxes, one module per framework.

Users import them as `sandkasten.integrations.NAME`. Each uses only the public names of `sandkasten`
and its framework, which is an optional extra.
"""
