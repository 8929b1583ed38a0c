"""File routes shared by sessions, workspaces and the file store."""
