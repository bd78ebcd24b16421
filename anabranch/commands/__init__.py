"""One module per command; each holds one click command (or group) of the same name as the module, called `command`."""
