"""The Python SDK. Start at `sandbox.py`.

It imports `errors`, `model` and `ports`; it reaches the engine only through `server/embedded.py`.
"""
