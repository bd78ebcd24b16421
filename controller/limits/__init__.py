"""What one client can take of a node: turns of its work, sessions, bytes that wait; and connections of anybody."""
