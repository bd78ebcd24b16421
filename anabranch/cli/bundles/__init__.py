"""Bundles on the command line: history, explanation, decisions, simulation and backtest."""
