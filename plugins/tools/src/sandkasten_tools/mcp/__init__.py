"""The MCP server: sandboxes as tools for an MCP client."""
