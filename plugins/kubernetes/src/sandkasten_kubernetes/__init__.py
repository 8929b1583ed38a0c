"""Sandboxes as Pods of a Kubernetes cluster. Imported on first use."""
