"""What-if: simulate and backtest policies, suggest settings, compare with another scaler."""
