"""From a create request to the removal of a sandbox."""
