"""The settings of the runtime, and how all settings are resolved."""
