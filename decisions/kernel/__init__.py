"""What every family of decisions shares."""
