"""One migration per schema version, with the statements of ``twicesafe migrate``."""
