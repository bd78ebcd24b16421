"""What `anabranch bookies` does: clusters, check, decisions, switch and report."""
