"""The warm pool: sandboxes kept ready for later requests, and how a request gets one."""
