"""Switching a cluster of brokers to another BookKeeper cluster: what touches ledgers and Pulsar's metadata."""
