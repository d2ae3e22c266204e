"""One module per command; its name is the command's."""
