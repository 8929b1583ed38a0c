"""Parts that installed distributions bring: entry points of the groups `sandkasten.*`.

A part of the daemon asks for the plugins of its group; nothing here knows what they are for.
"""
