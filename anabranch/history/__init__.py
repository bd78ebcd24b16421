"""What happened and why, read from the lake: status, plan, explain, replay, check, switches."""
