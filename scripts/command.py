#!/usr/bin/env python3
"""The command `sandkasten` of a wheel without the program of that name."""

from __future__ import annotations

from sandkasten.command_line import main

main()
