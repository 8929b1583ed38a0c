"""The MCP server: sandboxes as tools for an MCP client or for a program that runs agents."""
