"""The dashboard: its files, the logins of browsers, and tickets for their WebSockets."""
