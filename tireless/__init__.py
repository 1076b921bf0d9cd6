"""Label an issue on your forge; a coding agent works it, unattended; a pull request waits for you."""

__version__ = "0.1.0"
