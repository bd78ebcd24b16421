"""The stateful operator on the workers: one task per bucket, and its output."""
