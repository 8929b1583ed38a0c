"""The sandbox as tools of a model: their shapes, what they do, and who they are shown to."""
