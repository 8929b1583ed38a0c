"""The port proxy: HTTP and WebSocket to servers inside a sandbox."""
