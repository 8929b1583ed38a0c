"""Backends as values: what each can do, and the operator's rules that choose one."""
