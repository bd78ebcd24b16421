"""The checkpoint: start-up checks, pinned settings, upgrades, and a view of its state."""
