"""Records of a daemon besides its sandboxes: history, keys, stored files, previews, recordings."""
