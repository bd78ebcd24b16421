"""The chart on a Kubernetes API server of our own: `make cluster`."""
