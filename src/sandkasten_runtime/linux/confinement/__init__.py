"""Capabilities, system-call filters, id ranges and the check of a live process."""
