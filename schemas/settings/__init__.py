"""Settings: `conf/anabranch.toml` and the environment as typed sections."""
