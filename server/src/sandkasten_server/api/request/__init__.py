"""What happens to a request before its handler: identity, guards, rate, routing, audit."""
