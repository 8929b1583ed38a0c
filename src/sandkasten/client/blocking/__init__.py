"""The blocking half of the client, made from the asynchronous half."""
