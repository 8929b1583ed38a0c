"""Values and rules, pure: no event loop, no clock, no file, no process."""
