"""Agents as their authors write them: prompt files, their fields, templates and schemas."""
