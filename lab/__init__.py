"""The proof lab: what twicesafe promises, attacked. `make prove` runs it; nothing here is shipped."""
