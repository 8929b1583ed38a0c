"""The blocking half of the client, derived from the asynchronous half."""
