"""Commands, one a module: each holds a click command or group called `command`, named as the module."""
