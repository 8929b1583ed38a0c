"""One-shots on a Dagger Engine, with Dagger's own library."""
